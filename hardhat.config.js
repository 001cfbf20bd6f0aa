// Compiler and test settings of the contracts. The compiler comes from node_modules, so nothing is downloaded.
// Environment variables: FUZZ_RUNS is the number of fuzz and invariant runs. HARDHAT_OUT is the folder for artifacts
// and cache, for tools that must not overwrite the project's. SOLC_OPTIMIZER=off turns the optimizer off.
// bytecodeHash is "none" so that a comment does not change the bytecode, which is committed in covey/chain/abi.
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
          optimizer: { enabled: isOptimized, runs: 6_000 },
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
