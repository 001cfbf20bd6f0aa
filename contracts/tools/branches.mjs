// Makes branches visible to a coverage tool that measures lines only. A decision is the condition of an `if`, a `?:` or
// a `require`, or an operand of `&&` or `||`. Each decision is passed through its own function, which is added at the
// end of the file and has its true and its false outcome on separate lines. The original lines keep their numbers.
import { createRequire } from "node:module";

const solc = createRequire(import.meta.url)("solc");

function parse(name, content) {
  const settings = { stopAfter: "parsing", outputSelection: { "*": { "": ["ast"] } } };
  const input = { language: "Solidity", sources: { [name]: { content } }, settings };
  const output = JSON.parse(solc.compile(JSON.stringify(input), { import: () => ({ contents: "" }) }));
  const error = output.errors?.find(({ severity }) => severity === "error");
  if (error) throw new Error(error.formattedMessage);
  return output.sources[name].ast;
}

function* nodesOf(tree) {
  if (tree === null || typeof tree !== "object") return;
  if (tree.nodeType) yield tree;
  for (const child of Object.values(tree)) yield* nodesOf(child);
}

function decisionsOf(node) {
  if (node.nodeType === "IfStatement" || node.nodeType === "Conditional") return [node.condition];
  if (node.nodeType === "FunctionCall" && node.expression.name === "require") return [node.arguments[0]];
  if (node.nodeType === "BinaryOperation" && ["&&", "||"].includes(node.operator))
    return [node.leftExpression, node.rightExpression];
  return [];
}

/// Returns { text, lines, branches }. `text` is the new source. `lines` are the lines on which a statement begins.
/// `branches` has one entry for each outcome: the line of its decision, the decision as written, "true" or "false", and
/// the line of the new source that runs when the outcome is taken.
export function instrument(name, content) {
  const bytes = Buffer.from(content);
  const lineAt = (offset) => bytes.subarray(0, offset).toString().split("\n").length;
  const range = (node) => node.src.split(":").map(Number);
  const lines = new Set();
  const found = new Map();
  for (const node of nodesOf(parse(name, content))) {
    if (/(Statement|^Return)$/.test(node.nodeType)) lines.add(lineAt(range(node)[0]));
    for (const decision of decisionsOf(node)) found.set(decision.src, range(decision));
  }
  const edits = [];
  const branches = [];
  const tail = [];
  const height = lineAt(bytes.length);
  for (const [start, length] of found.values()) {
    const call = `__branch${edits.length / 2}`;
    edits.push({ at: start, text: `${call}(`, order: -length }, { at: start + length, text: ")", order: length });
    const written = bytes.subarray(start, start + length).toString().replace(/\s+/g, " ");
    for (const [outcome, offset] of [["true", 3], ["false", 4]])
      branches.push({ line: lineAt(start), written, outcome, runs: height + tail.length + offset });
    tail.push(`function ${call}(bool taken) pure returns (bool) {`, "if (taken)", "return true;", "return false; }");
  }
  // Where decisions begin or end at the same place, the outer one opens first and closes last.
  edits.sort((a, b) => a.at - b.at || a.order - b.order);
  let text = "";
  let done = 0;
  for (const { at, text: insert } of edits) {
    text += bytes.subarray(done, at).toString() + insert;
    done = at;
  }
  return { text: `${text}${bytes.subarray(done)}\n${tail.join("\n")}\n`, lines, branches };
}
