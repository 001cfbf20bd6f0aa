// How the contracts are compiled and tested.  The compiler is the one in node_modules: nothing is fetched.
// FUZZ_RUNS raises the fuzzing; HARDHAT_OUT is the folder for artifacts and cache of a tool that must not touch ours.
import path from "node:path";
import { defineConfig } from "hardhat/config";

const solc = path.join(import.meta.dirname, "node_modules", "solc");
const runs = Number(process.env.FUZZ_RUNS ?? 256);
const out = process.env.HARDHAT_OUT ?? ".";
const isOptimized = process.env.SOLC_OPTIMIZER !== "off";

export default defineConfig({
  solidity: {
    compilers: [
      {
        version: "0.8.30",
        path: path.join(solc, "soljson.js"),
        settings: {
          evmVersion: "cancun",
          optimizer: { enabled: isOptimized, runs: 100_000 },
          metadata: { bytecodeHash: "none" },
        },
      },
    ],
  },
  paths: {
    sources: "./contracts",
    tests: { solidity: "./tests/contracts" },
    cache: path.join(out, "cache"),
    artifacts: path.join(out, "artifacts"),
  },
  test: { solidity: { fuzz: { runs, seed: "0x436f766579" }, invariant: { runs, depth: 64, failOnRevert: true } } },
});
