"""Drafters of the bundled model on one user's traffic: `python -m bench.spec_traffic FOLDER`.

Yesterday's requests go through `spec serve --record`; a general drafter goes on training on what
was recorded, and both draft behind today's requests. Counts alone, which no other program changes.
`--general EAGLE3` may be a drafter that `spec convert train` has made before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from support.served import SPEC, ask, served

from nextn import core
from nextn.convert.train.draft_figures import GREEDY, usual_sampling
from nextn.core.bench.workloads import built_in
from nextn.core.generation import GenerateParams
from nextn.core.speculation.options import SpecOptions

N_YESTERDAY, N_TODAY, N_ANSWER, N_DRAFT, N_CTX = 160, 16, 96, 3, 4096
OWN = ("--steps", "120")
THREADS = ("--threads", "1", "--no-judge")
# One user's code base: forms of a shop.
THINGS = ("order", "invoice", "parcel", "customer", "refund", "basket", "coupon", "supplier")
FIELDS = ("price", "weight", "stock", "origin", "status", "owner", "date", "number")
ACTIONS = {
    "get_{field}": "Return the {field} of the {thing}, or the default.",
    "set_{field}": "Set the {field} of the {thing} and save it.",
    "check_{field}": "Raise ValueError if the {thing} has no {field}.",
    "sum_{field}": "Return the sum of the {field} of all items of the {thing}.",
}


class Configuration(Struct):
    name: str
    types: list[str]
    draft: Path | None = None
    fixed: bool = True


def requests(n: int, seed: str) -> list[str]:
    """A method behind a method of the same class: prompts as an editor would send them."""
    rng = random.Random(seed)
    return [_request(rng) for _ in range(n)]


def _request(rng: random.Random) -> str:
    thing, (first, second) = rng.choice(THINGS), rng.sample(FIELDS, 2)
    before, wanted = rng.sample(sorted(ACTIONS), 2)
    lines = [
        f"class {thing.title()}Form(Form):", "",
        *_method(before, thing, first),
        f"        {first} = self.data.get('{thing}_{first}')",
        f"        return self.clean('{first}', {first})", "",
        *_method(wanted, thing, second),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _method(name: str, thing: str, field: str) -> Iterator[str]:
    yield f"    def {name.format(field=field)}(self, {thing}, default=None):"
    yield f'        """{ACTIONS[name].format(field=field, thing=thing)}"""'


async def send(port: int, prompts: Sequence[str]) -> None:
    for i, prompt in enumerate(prompts):
        body = {"prompt": prompt, "max_tokens": N_ANSWER, "seed": i}
        reply = await ask(port, "POST", "/v1/completions", body)
        if reply.status != 200:
            raise RuntimeError(f"the server answered {reply.status}: {reply.body[:200]!r}")


def train(output: Path, *more: str | Path) -> Path:
    if not output.exists():
        words = ["convert", "train", "-m", "nano", "-o", output, *THREADS, *more]
        code = os.spawnv(os.P_WAIT, sys.executable, [*SPEC, *map(str, words)])
        if code:
            raise RuntimeError(f"training {output} ended with {code}")
    return output


def row(each: Configuration, costs: Path, kinds: Sequence[Sequence[str]]) -> str:
    """Tokens a step behind each kind of prompts, greedily and at the file's sampling, and how many
    drafts of each source were accepted in all of them."""
    spec = SpecOptions(
        types=tuple(each.types),
        draft_n_max=N_DRAFT if each.fixed else None,
        draft_vocab="full",
        fixed=each.fixed,
        costs=None if each.fixed else str(costs),
    )
    lengths, accepted = [], Counter[str]()
    for prompts in kinds:
        for greedy in (True, False):
            draft = [] if each.draft is None else [each.draft]
            with core.load(None, "cpu", n_ctx=N_CTX, threads=1, draft=draft, spec=spec) as runtime:
                sampling = GREEDY if greedy else usual_sampling(runtime, 1)
                params, tokens, kept = GenerateParams(sampling, max_tokens=N_ANSWER), 0, 0
                for prompt in prompts:
                    tokens += sum(event.token >= 0 for event in runtime.generate(prompt, params))
                    tokens -= 1  # which the prompt's step makes
                    kept += runtime.stats.draft_n_accepted
                    for source, counts in runtime.stats.by_source.items():
                        accepted[source] += counts.accepted
            lengths.append(f"{tokens / (tokens - kept):.2f}")
    named = ", ".join(f"{source} {n}" for source, n in accepted.most_common() if n)
    return f"| {each.name} | {' | '.join(lengths)} | {named} |"


def write_costs(path: Path) -> Path:
    """Of a model whose steps take four milliseconds: the bundled one's are so short that hardly any
    draft is worth its time, and how many are depends on the machine."""
    drafts = {"mtp": 0.4, "eagle3": 0.3}
    steps = {n: {"ms": 4.0 * (1 + 0.06 * (n - 1))} for n in (1, 2, 4, 8, 17)}
    lines = {name: {1: {n: n * ms for n in (1, 2, 4, 8)}} for name, ms in drafts.items()}
    found = {"step": {"rows": steps}, "draft": lines, "catch_up": dict.fromkeys(drafts, 0.02)}
    path.write_text(json.dumps({"format": "nextn-costs", **found}))
    return path


def configurations(folder: Path, general: Path) -> Iterator[Configuration]:
    day = folder / "day"
    own = train(folder / "own-eagle3.gguf", "--texts", day, "--start-from", general, *OWN)
    own_head = train(folder / "own-mtp.gguf", "--kind", "mtp", "--texts", day, *OWN)
    yield Configuration("EAGLE3, general", ["eagle3"], general)
    yield Configuration("EAGLE3, the user's own", ["eagle3"], own)
    yield Configuration("the model's MTP head", ["mtp"])
    yield Configuration("MTP head, the user's own", ["mtp"], own_head)
    both = ["mtp", "eagle3"]
    yield Configuration("MTP head and general EAGLE3, `fixed`", both, general)
    yield Configuration("the same, by the policy", both, general, fixed=False)
    yield Configuration("`auto` without an EAGLE3 drafter", ["auto"], None, fixed=False)
    yield Configuration("`auto` with the general one", ["auto"], general, fixed=False)
    yield Configuration("`auto` with the user's own", ["auto"], own, fixed=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where recordings and drafters go")
    parser.add_argument("--general", type=Path, required=True, help="EAGLE3 drafter of nano")
    options = parser.parse_args()
    os.environ |= {"SPEC_TOKEN_COUNTS": "0", "SPEC_DRAFTER_RESULTS": "0"}
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "day").exists():
        with served("-m", "nano", "--record", str(folder / "day"), "--record-all") as server:
            asyncio.run(send(server.port, requests(N_YESTERDAY, "yesterday")))
            server.end()
    kinds = (requests(N_TODAY, "today"), [prompt.text for prompt in built_in("code").prompts])
    write = sys.stdout.write
    write("| tokens a step | today, greedy | sampled | other code, greedy | sampled | accepted |\n")
    write("| --- | ---: | ---: | ---: | ---: | --- |\n")
    costs = write_costs(folder / "costs.json")
    for each in configurations(folder, options.general):
        write(row(each, costs, kinds) + "\n")


if __name__ == "__main__":
    main()
