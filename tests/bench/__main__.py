"""Run the sections, print a table of what was asked and measured, write the record."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import (
    bandwidth,
    command,
    context,
    converting,
    decode,
    neighbour,
    recurrent,
    serve,
    spec_agent,
    spec_batch,
    spec_chats,
    spec_corpus,
    spec_edit,
    spec_memory,
    spec_nano,
    spec_networks,
    spec_sweep,
    spec_synth,
    spec_trees,
    starts,
    tiles,
    together,
    widths,
)
from .figures import Figure, summary, table
from .provenance import Moment, provenance
from .record import Record
from .setup import Setup

MAX_DISTURBED = 0.03  # seconds of others' work in a second of ours
Section = Callable[[Setup], list[Figure]]

# In the order of a whole run. A section of another file is one more row.
SECTIONS: dict[str, Section] = {
    "decode": decode.dense,
    "rows": widths.rows,
    "qwen3": partial(decode.other_shape, name="qwen3"),
    "moe": partial(decode.other_shape, name="moe"),
    "oss": decode.oss_shape,
    "recurrent": recurrent.recurrent,
    "bandwidth": bandwidth.share,
    "neighbour": neighbour.beside_a_neighbour,
    "together": together.eight,
    "together-peer": together.eight_in_llama_cpp,
    "context": context.long_context,
    "small": command.small_file,
    "tiles": tiles.every_format,
    "generic": tiles.generic,
    "dispatch": starts.dispatch,
    "start": starts.starts,
    "spec-synth": spec_synth.synthetic,
    "spec-networks": spec_networks.networks,
    "spec-hostile": spec_synth.hostile,
    "spec-sweep": spec_sweep.sweep,
    "spec-nano": spec_nano.held_out_python,
    "spec-edit": spec_edit.edits,
    "spec-batch": spec_batch.four,
    "spec-chats": spec_chats.chats,
    "spec-agent": spec_agent.agents,
    "spec-trees": spec_trees.trees,
    "spec-corpus": spec_corpus.look_ups,
    "spec-memory": spec_memory.factors,
    "convert-error": converting.errors,
    "convert-speed": converting.speed,
    "convert-attach": converting.attach,
    "serve": serve.serving,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", type=_names, default=list(SECTIONS), metavar="NAME[,NAME...]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the JSON record goes")
    parser.add_argument("--files", type=Path, help="where random files are kept between runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.files or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run(Setup(options.threads, folder), options.only, options.out)


def run(setup: Setup, names: list[str], out: Path | None) -> None:
    record = Record(out, provenance(setup.threads, names))
    results: dict[str, list[Figure]] = {}
    begin = Moment.now()
    for name in names:
        rate = bandwidth.readable(setup.threads)
        _say(f"{name} ... (memory is read at {rate:.0f} GB/s)")
        start = Moment.now()
        results[name] = SECTIONS[name](setup)
        figures = [figure.as_json() for figure in results[name]]
        facts = {"readable_gb_per_s_before": rate, **start.until_now()}
        record.add(name, facts | {"figures": figures})
    took = begin.until_now()
    sys.stdout.write(f"{record.text()}\n{table(results)}\n\n")
    sys.stdout.write(f"{summary(results)}; {took['seconds']:.0f} seconds in all\n")
    others = took["others_cpu_seconds"] or 0
    if others > MAX_DISTURBED * took["seconds"]:
        _say(f"other processes had {others:.1f} s of processor time meanwhile: run it again")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(
            f"no section {unknown[0]!r}; choose from {', '.join(SECTIONS)}"
        )
    return names or list(SECTIONS)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
