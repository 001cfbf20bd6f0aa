// Measures which lines and branches of the contracts the Solidity tests run, by contract and in total. `make coverage`
// calls this. Hardhat measures a copy under build/coverage (see branches.mjs), so the project's artifacts do not
// change. Only lines on which a statement begins count, and contracts/devnet does not count. Exits with 1 if a test
// fails or the coverage is below FLOORS.
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { instrument } from "./branches.mjs";

const FLOORS = { lines: 98, branches: 95 };
const ROOT = path.resolve(import.meta.dirname, "..", "..");
const COPY = path.join(ROOT, "build", "coverage");

function makeCopy() {
  fs.rmSync(COPY, { recursive: true, force: true });
  const measured = new Map();
  for (const folder of ["contracts", "tests/contracts"])
    for (const file of fs.globSync(`${folder}/**/*.sol`, { cwd: ROOT })) {
      const source = fs.readFileSync(path.join(ROOT, file), "utf8");
      const isOurs = folder === "contracts" && !file.startsWith("contracts/devnet/");
      if (isOurs) measured.set(file, instrument(file, source));
      fs.mkdirSync(path.dirname(path.join(COPY, file)), { recursive: true });
      fs.writeFileSync(path.join(COPY, file), isOurs ? measured.get(file).text : source);
    }
  for (const name of ["hardhat.config.js", "package.json"])
    fs.copyFileSync(path.join(ROOT, name), path.join(COPY, name));
  fs.symlinkSync(path.join(ROOT, "node_modules"), path.join(COPY, "node_modules"));
  return measured;
}

/// Returns a map from file to line to how often the line ran.
function readLcov() {
  const counts = new Map();
  let current;
  for (const row of fs.readFileSync(path.join(COPY, "coverage", "lcov.info"), "utf8").split("\n")) {
    if (row.startsWith("SF:")) counts.set(row.slice(3), (current = new Map()));
    if (row.startsWith("DA:")) current.set(...row.slice(3).split(",").map(Number));
  }
  return counts;
}

const percent = (hit, all) => (all === 0 ? 100 : (100 * hit) / all);
const cell = (hit, all) => `${hit}/${all}`.padStart(9) + `${percent(hit, all).toFixed(1)} %`.padStart(9);

const measured = makeCopy();
const cli = path.join(ROOT, "node_modules", "hardhat", "dist", "src", "cli.js");
const run = spawnSync(process.execPath, [cli, "test", "solidity", "--coverage"], {
  cwd: COPY,
  encoding: "utf8",
  maxBuffer: 2 ** 26,
  env: { FUZZ_RUNS: "32", SOLC_OPTIMIZER: "off", ...process.env },
});
if (run.status !== 0) {
  console.error(run.stdout + run.stderr);
  process.exit(1);
}

const counts = readLcov();
const total = { lines: [0, 0], branches: [0, 0] };
const missed = [];
console.log("contract".padEnd(24) + "lines".padStart(18) + "branches".padStart(18));
for (const [file, { lines, branches }] of [...measured].sort()) {
  const ran = counts.get(file) ?? new Map();
  const hit = {
    lines: [...lines].filter((line) => ran.get(line) > 0),
    branches: branches.filter((branch) => ran.get(branch.runs) > 0),
  };
  if (lines.size === 0) continue;
  console.log(
    path.basename(file, ".sol").padEnd(24) +
      cell(hit.lines.length, lines.size) +
      cell(hit.branches.length, branches.length),
  );
  for (const [kind, all] of [["lines", [...lines]], ["branches", branches]]) {
    total[kind][0] += hit[kind].length;
    total[kind][1] += all.length;
  }
  for (const line of lines) if (!hit.lines.includes(line)) missed.push(`${file}:${line} never runs`);
  for (const branch of branches)
    if (!hit.branches.includes(branch))
      missed.push(`${file}:${branch.line} is never ${branch.outcome}: ${branch.written}`);
}
console.log("all".padEnd(24) + cell(...total.lines) + cell(...total.branches));
for (const line of missed) console.log(line);
const low = Object.keys(FLOORS).filter((kind) => percent(...total[kind]) < FLOORS[kind]);
for (const kind of low) console.error(`${kind} are below ${FLOORS[kind]} %`);
process.exit(low.length > 0 || total.lines[1] === 0 ? 1 : 0);
