"""Folders of runs with metrics and completions, for tests of what reads them."""

import json
from collections.abc import Sequence
from pathlib import Path

HOSTILE = (
    "</script><script>document.title = 'taken'</script>",
    "<script>fetch('https://example.com/a')</script>",
    "<img src=x onerror=alert(1)>",
    "<IMG SRC=https://example.com/b ONERROR='throw 1'>",
    "\"><img src=x onerror='document.title=1'>",
    "</pre></details></body></html><h1>out</h1>",
    "</pre><iframe src='https://example.com/c'></iframe>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<style>body { display: none } @import url(https://example.com/d);</style>",
    "<link rel=stylesheet href=https://example.com/e>",
    "<meta http-equiv=refresh content='0;url=//example.com'>",
    "<base href=https://example.com/>",
    "<form action=https://example.com/f><input name=a><button>go</button></form>",
    "<a href='javascript:alert(1)'>click</a>",
    "<object data=https://example.com/g></object><embed src=https://example.com/h>",
    "<!-- an open comment",
    "--><b>bold</b><!--",
    "]]><![CDATA[<b>bold</b>]]>",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;b&#62;",
    "<think></details><script>alert(1)</script></think><b>7</b>",
    "</think></think><think><i>open",
    "\u202eright to left\u202c and \u2066isolated\u2069",
    "\u202d\u202a\u202b\u2067\u2068",
    "\x00\x01\x1b[2J\x7f\x9b31m",
    "\ufffe\uffff\u2028\u2029\x85",
    "<details open ontoggle=alert(1)><summary>x</summary>",
    "<textarea><title><plaintext>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "${alert(1)} {{7*7}} <%= 1 %> `id` '\"` onmouseover=alert(1) x=",
)
"""Thirty completions that would change a page that did not escape them."""


def write_metrics(home: Path, steps: int, *, more: Sequence[object] = ()) -> None:
    """Write updates of some steps, evaluations of policies 0 and `steps`, and further lines."""
    lines: list[object] = [
        {
            "event": "update", "step": step, "reward/mean": 0.1 * step, "reward/task": 0.1 * step,
            "reward/task_std": 0.4, "reward/length_penalty": 0.0, "batch/samples": 16, "batch/completion_tokens": 5.5,
            "batch/truncated_share": 0.0, "batch/live_share": 0.75, "policy/mismatch_kl": 1e-4,
            "perf/tokens_per_second": 1000.0, "trainer/idle_ratio": 0.5, "time/step": 2.0,
        }
        for step in range(steps)
    ]  # fmt: skip
    lines += [{"event": "evaluation", "step": step, "reward": 0.5, "n": 64} for step in (0, steps)]
    home.mkdir(parents=True, exist_ok=True)
    (home / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (*lines, *more)))


def write_completions(home: Path, step: int, texts: Sequence[str]) -> None:
    """Write the completions of a step, each with the same text as its question."""
    line = {
        "step": step, "policy": step, "task": 1, "group": 0, "sibling": 0, "reward": 1.0, "length_penalty": 0.0,
        "advantage": 0.5, "finished": True, "tokens": 3,
    }  # fmt: skip
    folder = home / "rollouts"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps(line | {"question": text, "completion": text}) + "\n" for text in texts]
    (folder / f"{step}.jsonl").write_text("".join(rows))
