"use strict";
// Hashes a leaf of an epoch and its header in this browser, as covey/protocol/epochs.py and merkle.py do.
const MASK = (1n << 64n) - 1n;
const rotate = (value, by) => ((value << BigInt(by)) | (value >> BigInt(64 - by))) & MASK;
function listConstants() {
  const found = [];
  let register = 1;
  for (let round = 0; round < 24; round += 1) {
    let constant = 0n;
    for (let i = 0; i < 7; i += 1) {
      if (register & 1) constant |= 1n << BigInt(2 ** i - 1);
      register = (register << 1) ^ ((register >> 7) * 0x171);
    }
    found.push(constant);
  }
  return found;
}
const CONSTANTS = listConstants();
function permute(a) {
  for (const constant of CONSTANTS) {
    const c = [0, 1, 2, 3, 4].map((x) => a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20]);
    for (let i = 0; i < 25; i += 1) a[i] ^= c[(i + 4) % 5] ^ rotate(c[(i + 1) % 5], 1);
    let [x, y, current] = [1, 0, a[1]];
    for (let t = 0; t < 24; t += 1) {
      [x, y] = [y, (2 * x + 3 * y) % 5];
      [current, a[x + 5 * y]] = [a[x + 5 * y], rotate(current, (((t + 1) * (t + 2)) / 2) % 64)];
    }
    for (let row = 0; row < 25; row += 5) {
      const line = a.slice(row, row + 5);
      for (let i = 0; i < 5; i += 1) a[row + i] = line[i] ^ (~line[(i + 1) % 5] & MASK & line[(i + 2) % 5]);
    }
    a[0] ^= constant;
  }
}
function keccak(hex) {
  const bytes = hex.match(/../g).map((pair) => parseInt(pair, 16));
  bytes.push(1);
  while (bytes.length % 136) bytes.push(0);
  bytes[bytes.length - 1] |= 128;
  const a = Array(25).fill(0n);
  for (let start = 0; start < bytes.length; start += 136) {
    for (let i = 0; i < 136; i += 1) a[i >> 3] ^= BigInt(bytes[start + i]) << BigInt(8 * (i % 8));
    permute(a);
  }
  return a.slice(0, 4).map((lane) => lane.toString(16).padStart(16, "0").match(/../g).reverse().join("")).join("");
}
function encode(value) {
  const text = String(value);
  return (text.startsWith("0x") ? text.slice(2).toLowerCase() : BigInt(text).toString(16)).padStart(64, "0");
}
const hashLeaf = (fields) => keccak(keccak(fields.map(encode).join("")));
const headerType = "EpochHeader(uint256 pool,uint64 epoch,bytes32 workRoot,bytes32 rewardRoot,uint64 leafCount,uint64 units,uint32 verdicts,bytes32 dataHash,bytes32 previousHash)";
const toHex = (text) => Array.from(text, (each) => each.charCodeAt(0).toString(16)).join("");
const hashHeader = (fields) => keccak(keccak(toHex(headerType)) + fields.map(encode).join(""));
const climb = (leaf, proof) => proof.map((sibling) => sibling.slice(2)).reduce((node, other) => keccak(node < other ? node + other : other + node), leaf);
async function check(form, receipt) {
  const { epoch, pool, work, reward, leaves, units, verdicts, file, previous, header } = form.dataset;
  const answer = await fetch(`/v1/epochs/${epoch}/leaves/${receipt}`);
  const body = await answer.json();
  if (!answer.ok) return body.message;
  const names = ["receipt_hash", "work_key", "node", "contributor", "task", "policy_version", "signed_at", "outcome", "reason", "units", "evidence_hash"];
  const leaf = hashLeaf(names.map((name) => body.fields[name]));
  const root = climb(leaf, body.proof);
  const hashed = hashHeader([pool, epoch, work, reward, leaves, units, verdicts, file, previous]);
  const says = (isSo) => (isSo ? "equal" : "DIFFERENT");
  return [
    ...names.map((name) => `${name.padEnd(15)} ${body.fields[name]}`),
    `leaf            0x${leaf}`,
    `root by proof   0x${root}  ${says("0x" + root === work && body.fields.receipt_hash === receipt)}`,
    `header          0x${hashed}  ${header ? says("0x" + hashed === header) : "not posted yet"}`,
  ].join("\n");
}
if (typeof document === "undefined") {
  globalThis.leaves = { keccak, hashLeaf, hashHeader, climb };
} else {
  const form = document.getElementById("leaf");
  const result = document.getElementById("result");
  form.receipt.value = new URLSearchParams(location.search).get("leaf") ?? "";
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    result.hidden = false;
    try {
      result.textContent = await check(form, form.receipt.value.trim().toLowerCase());
    } catch (error) {
      result.textContent = String(error);
    }
  });
}
