// Writes ABI and bytecode of each contract from Hardhat's artifacts to covey/chain/abi, with sorted keys.
// `--check` writes nothing and exits with 1 if a file differs. Compile first, without coverage, which changes the
// bytecode.
import fs from "node:fs";
import path from "node:path";

const ROOT = path.resolve(import.meta.dirname, "..");
const TARGET = path.join(ROOT, "covey", "chain", "abi");
const CONTRACTS = {
  EpochLedger: "contracts/EpochLedger.sol",
  NodeRegistry: "contracts/NodeRegistry.sol",
  PolicyRegistry: "contracts/PolicyRegistry.sol",
  PoolRegistry: "contracts/PoolRegistry.sol",
  SlashingCourt: "contracts/SlashingCourt.sol",
  StakeManager: "contracts/StakeManager.sol",
  TestToken: "contracts/devnet/TestToken.sol",
};

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]));
}

function render(name, source) {
  const file = path.join(ROOT, "artifacts", source, `${name}.json`);
  const { contractName, abi, bytecode } = JSON.parse(fs.readFileSync(file, "utf8"));
  return JSON.stringify(sorted({ contractName, abi, bytecode }), null, 1) + "\n";
}

const isCheck = process.argv.includes("--check");
const drifted = [];
for (const [name, source] of Object.entries(CONTRACTS)) {
  const file = path.join(TARGET, `${name}.json`);
  const text = render(name, source);
  if (!isCheck) fs.writeFileSync(file, text);
  else if (!fs.existsSync(file) || fs.readFileSync(file, "utf8") !== text) drifted.push(name);
}
if (drifted.length > 0) {
  console.error(`ABI differs from the contracts: ${drifted.join(", ")}. Run "npm run export-abi".`);
  process.exit(1);
}
