"""`spec convert quantize`: a GGUF file in fewer bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..console import Console
from ..flags import argument, flag, flag_group, given_flags, takes_flags
from ..shared_options import VoiceOptions
from ..usage import flag_errors
from . import quantize_report as reports
from .writing import FORCE, SPLIT, THREADS, read_size, writing

if TYPE_CHECKING:
    from ...convert.quantize.quantize_plan import QuantizeOptions, QuantizePlan


@flag_group("Files")
class QuantizeSource:
    source: Path = argument("IN", "GGUF file, or any shard of one.")
    others: list[str] | None = argument(
        "OUT TYPE THREADS",
        "Output file, type and number of threads, in the order of llama-quantize.",
        None,
    )


@flag_group("Types")
class QuantizeTypes:
    type: str = flag(
        "--type TYPE",
        "Type or mixture of llama-quantize: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q2_K_S Q3_K_S Q3_K_M "
        "Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS "
        "IQ3_XS IQ3_S IQ3_M IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4_MOE F16 BF16 F32. COPY leaves all as "
        "it is, but for the rules.",
        "Q4_K_M",
    )
    tensor_type: list[str] | None = flag(
        "--tensor-type RULE",
        "Type of some tensors, NAME=TYPE as in ffn_down=q6_k: NAME is a regular expression found "
        "in the tensor's name, TYPE a ggml type or keep. 0-3,last2:ffn_down=q8_0 is for these "
        "layers alone. May be given several times; the first that fits decides.",
    )
    tensor_type_file: Path | None = flag(
        "--tensor-type-file FILE", "File with more such rules, one a line."
    )
    output_tensor_type: str | None = flag("--output-tensor-type TYPE", "Type of the output matrix.")
    token_embedding_type: str | None = flag(
        "--token-embedding-type TYPE", "Type of the token table."
    )
    leave_output_tensor: bool = flag("--leave-output-tensor", "Keep the output matrix as it is.")
    pure: bool = flag("--pure", "Give all tensors one type instead of the mixture.")


@flag_group("Quality")
class QualityOptions:
    imatrix: Path | None = flag(
        "--imatrix FILE",
        "Importance matrix of spec convert imatrix or llama-imatrix (GGUF or .dat).",
    )
    allow_requantize: bool = flag(
        "--allow-requantize", "Also quantise what is quantised already, which costs quality twice."
    )
    measure: bool = flag("--measure", "Measure the error that each type makes.")


@flag_group("Output")
class RunOptions:
    output: Path | None = flag("--output -o OUT", "Output file.")
    force: bool = FORCE
    split_max_size: str | None = SPLIT
    dry_run: bool = flag("--dry-run", "Print the plan for each tensor, and write nothing.")
    json: bool = flag("--json", "One JSON object: sizes, types, errors.")
    threads: int | None = THREADS


@takes_flags
def quantize(
    files: QuantizeSource,
    types: QuantizeTypes,
    quality: QualityOptions,
    runs: RunOptions,
    voice: VoiceOptions,
) -> None:
    """Quantise a GGUF file.

    spec convert quantize model-f16.gguf -o model-q4.gguf --type Q4_K_M

    spec convert quantize model-f16.gguf model-q4.gguf Q4_K_M
    """
    # Everything that can be wrong with the command line comes before anything slow.
    types, runs = in_llama_order(files, types, runs)
    if runs.output is None and not runs.dry_run:
        raise typer.BadParameter("where to? Give --output OUT, or --dry-run to see the plan")
    shard_bytes = read_size(runs.split_max_size)
    output = voice.console()

    from ...convert.files.output_file import OutputFile
    from ...convert.quantize.quantize_file import quantize_file
    from ...convert.quantize.quantize_plan import check_plan, make_plan
    from ...core.backend.cpu.threads import default_threads
    from ...core.gguf.reader import open_gguf
    from ...core.models.drafters.foreign_names import in_names_of_today

    with open_gguf(files.source) as opened:
        source = in_names_of_today(opened).file
        with flag_errors():
            plan = make_plan(source, read_options(types, quality))
        reports.say_remarks(plan, output)
        if runs.dry_run or runs.output is None:
            reports.say_refusal(plan, output)
            show_plan(plan, output, as_json=runs.json)
            return
        with flag_errors():
            check_plan(plan)
        with writing(output, runs.output) as progress:
            result = quantize_file(
                source,
                plan,
                OutputFile(runs.output, runs.force, shard_bytes),
                n_threads=runs.threads or default_threads(),
                measures=quality.measure,
                progress=progress,
                compiling=lambda done, n: output.progress("preparing the quantisers", done / n),
            )
    reports.finish_run(plan, result, output, as_json=runs.json)


def in_llama_order(
    files: QuantizeSource, types: QuantizeTypes, runs: RunOptions
) -> tuple[QuantizeTypes, RunOptions]:
    """The flags, with what stands behind IN as in `llama-quantize IN [OUT] TYPE [THREADS]`."""
    from ...convert.quantize.recipes import is_recipe

    words = list(files.others or ())
    if words and is_recipe(words[0]):
        words.insert(0, str(files.source.with_name(f"ggml-model-{words[0].upper()}.gguf")))
    names = ("output", "type", "threads")
    if len(words) > len(names):
        raise typer.BadParameter(f"nothing follows IN OUT TYPE THREADS, got {words[3]!r:.60}")
    given = dict(zip(names, words, strict=False))
    for name, word in given.items():
        if name in given_flags():
            raise typer.BadParameter(f"{word!r:.60} behind IN and --{name} exclude each other")
    if "type" in given:
        types = replace(types, type=given["type"])
    if "output" in given:
        runs = replace(runs, output=Path(given["output"]))
    if "threads" in given:
        n = given["threads"]
        if not n.isdecimal() or not int(n[:9]):
            raise typer.BadParameter(f"the number of threads must be at least 1, got {n!r:.60}")
        runs = replace(runs, threads=int(n[:9]))
    return types, runs


def read_options(types: QuantizeTypes, quality: QualityOptions) -> QuantizeOptions:
    from ...convert.quantize.imatrix import read_importance
    from ...convert.quantize.quantize_plan import QuantizeOptions
    from ...convert.quantize.recipes import find_recipe
    from ...convert.quantize.type_rules import parse_rule, read_rules, target_type

    rules = [parse_rule(text) for text in types.tensor_type or []]
    if types.tensor_type_file is not None:
        rules += read_rules(types.tensor_type_file)

    def named(kind: str | None, flag: str) -> str | None:
        return None if kind is None else target_type(kind, flag).name

    return QuantizeOptions(
        recipe=find_recipe(types.type),
        rules=tuple(rules),
        output_type=named(types.output_tensor_type, "--output-tensor-type"),
        embedding_type=named(types.token_embedding_type, "--token-embedding-type"),
        leaves_output=types.leave_output_tensor,
        is_pure=types.pure,
        importance=None if quality.imatrix is None else read_importance(quality.imatrix),
        allows_requantising=quality.allow_requantize,
    )


def show_plan(plan: QuantizePlan, output: Console, *, as_json: bool) -> None:
    if as_json:
        record = reports.plan_record(plan) | {"plan": reports.tensors_record(plan)}
        output.line(json.dumps(record))
        return
    for line in reports.plan_lines(plan):
        output.line(line)
