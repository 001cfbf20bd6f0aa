#!/usr/bin/env node
// The compiler of the npm package solc behind those options of solc that forge uses. Forge would download a compiler.
const fs = require("node:fs");
const solc = require("solc");

if (process.argv.includes("--version")) {
  console.log(`solc, the solidity compiler commandline interface\nVersion: ${solc.version()}`);
} else {
  process.stdout.write(solc.compile(fs.readFileSync(0, "utf8")));
}
