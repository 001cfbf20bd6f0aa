// How the contracts are compiled and tested.  The compiler is the one in node_modules: nothing is fetched.
import path from "node:path";
import { defineConfig } from "hardhat/config";

const solc = path.join(import.meta.dirname, "node_modules", "solc");

export default defineConfig({
  solidity: {
    compilers: [
      {
        version: "0.8.30",
        path: path.join(solc, "soljson.js"),
        settings: { evmVersion: "cancun", optimizer: { enabled: true, runs: 1000 } },
      },
    ],
  },
  paths: { sources: "./contracts", tests: { solidity: "./tests/contracts" }, cache: "./cache", artifacts: "./artifacts" },
  test: { solidity: { fuzz: { runs: 256, seed: "0x436f766579" } } },
});
