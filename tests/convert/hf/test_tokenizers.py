"""Tokenizers of checkpoints: after the conversion, any text becomes the same ids."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.converting import check_line
from support.thoroughness import n_examples
from support.tokenizer_files import (
    CUTS,
    SPECIALS,
    byte_level,
    plain_merges,
    sentence_piece_merges,
    sentence_piece_proto,
    tiktoken_ranks,
)
from tokenizers import Tokenizer as Original

from nextn.convert.checkpoint.folder import Folder, ModelCheckpoint
from nextn.convert.hf.tokenizer import tokenizer_keys
from nextn.convert.hf.tokenizer.pre_detection import PROBE, _cut
from nextn.convert.hf.tokenizer.sentencepiece import parse_proto
from nextn.convert.hf.tokenizer.tokenizer_traits import GEMMA4, GLM, USUAL, TokenizerTraits
from nextn.core.errors import FileFormatError, ModelError, NextnError
from nextn.core.gguf.types import Typed
from nextn.core.tokenizer import Tokenizer, load_tokenizer
from nextn.core.tokenizer.pretokenizers import PRE_TOKENIZERS

ROWS = 1024
TEXTS = st.text(max_size=60) | st.text("ab '\n\t.12sSdéÀ你😀", max_size=40)
PLAIN_TEXTS = TEXTS.map(lambda text: unicodedata.normalize("NFC", text))
Keys = dict[str, Any]


def read(
    folder: Path,
    config: Keys | None = None,
    pre: str | None = None,
    traits: TokenizerTraits = USUAL,
) -> tuple[Keys, list[str]]:
    checkpoint = ModelCheckpoint("it", Folder(folder), config or {}, {}, [])
    keys, notes = tokenizer_keys(checkpoint, traits, ROWS, pre)
    return {k: v.value if isinstance(v, Typed) else v for k, v in keys.items()}, notes


def save(folder: Path, definition: str, **settings: Any) -> Path:
    (folder / "tokenizer.json").write_text(definition, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def byte_level_pairs(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Original, Tokenizer]]:
    out = {}
    for name in [*CUTS, "gpt-2"]:
        definition = byte_level(name if name in CUTS else None)
        keys, notes = read(save(tmp_path_factory.mktemp(name), definition))
        assert notes == []
        assert keys["tokenizer.ggml.pre"] == name
        out[name] = (Original.from_str(definition), load_tokenizer(keys))
    return out


@settings(max_examples=n_examples(150), deadline=None)
@given(text=PLAIN_TEXTS)
def test_byte_level_ids(byte_level_pairs: dict[str, tuple[Original, Tokenizer]], text: str) -> None:
    for original, ours in byte_level_pairs.values():
        want = original.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False) == want


@pytest.fixture(scope="module")
def merged_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Original, Tokenizer]:
    definition = sentence_piece_merges()
    keys, notes = read(save(tmp_path_factory.mktemp("spm"), definition, bos_token="<s>"))
    assert notes == []
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.add_bos_token"] is True
    return Original.from_str(definition), load_tokenizer(keys)


@settings(max_examples=n_examples(150), deadline=None)
@given(text=TEXTS.filter(lambda text: text and "<" not in text))
def test_sentence_piece_ids_from_merges(merged_pair: tuple[Original, Tokenizer], text: str) -> None:
    original, ours = merged_pair
    assert (
        ours.encode(text, add_special=False) == original.encode(text, add_special_tokens=False).ids
    )


def test_kinds_and_padding(tmp_path: Path) -> None:
    keys, _ = read(save(tmp_path, byte_level("qwen2"), eos_token={"content": SPECIALS[2]}))
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len(tokens) == len(kinds) == ROWS
    assert [kinds[tokens.index(text)] for text in SPECIALS] == [3, 3, 3]
    assert kinds[tokens.index("<tool_call>")] == 4
    assert tokens[-1] == f"[PAD{ROWS - 1}]"
    assert kinds[-1] == 5
    assert keys["tokenizer.ggml.eos_token_id"] == tokens.index(SPECIALS[2])
    assert keys["tokenizer.ggml.add_bos_token"] is False


def test_merges_as_texts_and_as_pairs_are_the_same(tmp_path: Path) -> None:
    definition = json.loads(byte_level("qwen2"))
    pairs = read(save(tmp_path, json.dumps(definition)))[0]["tokenizer.ggml.merges"]
    merges = definition["model"]["merges"]
    assert isinstance(merges[0], list)
    definition["model"]["merges"] = [" ".join(pair) for pair in merges]
    assert read(save(tmp_path, json.dumps(definition)))[0]["tokenizer.ggml.merges"] == pairs


def test_vocab_and_merges_without_a_tokenizer_json(tmp_path: Path) -> None:
    definition = json.loads(byte_level("qwen2"))
    model = definition["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{lines}\n")
    added = {t["content"]: t["id"] for t in definition["added_tokens"]}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    ours = load_tokenizer(read(tmp_path, pre="qwen2")[0])
    original = Original.from_str(byte_level("qwen2"))
    text = "it's 1234 words<|im_end|>\n\n  indented"
    assert ours.encode(text) == original.encode(text).ids


# Endings and templates ---------------------------------------------------------------------------


def test_more_endings_from_the_generation_config(tmp_path: Path) -> None:
    save(tmp_path, byte_level("qwen2"), eos_token="<|endoftext|>")
    tokens = read(tmp_path)[0]["tokenizer.ggml.tokens"]
    known, other = tokens.index("<|im_end|>"), tokens.index("<tool_call>")
    first = tokens.index("<|endoftext|>")
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [known, other, first]})
    )
    keys, _ = read(tmp_path)
    assert keys["tokenizer.ggml.eos_token_id"] == first
    assert keys["tokenizer.ggml.eot_token_id"] == other  # <|im_end|> is known by its text
    assert load_tokenizer(keys).eog_ids >= {known, other, first}


def test_eos_list_of_config_alone(tmp_path: Path) -> None:
    keys, _ = read(save(tmp_path, byte_level("qwen2")), {"eos_token_id": [5, 7]})
    assert keys["tokenizer.ggml.eos_token_id"] == 5
    assert load_tokenizer(keys).eog_ids >= {5, 7}


TEMPLATES: list[tuple[Keys, dict[str, str], Keys]] = [
    ({"chat_template": "A"}, {}, {"": "A"}),
    ({"chat_template": "A"}, {"chat_template.jinja": "B"}, {"": "B"}),
    ({}, {"chat_template.json": '{"chat_template": "C"}'}, {"": "C"}),
    (
        {"chat_template": [{"name": "default", "template": "D"},
                           {"name": "tool-use", "template": "E"}]},
        {},
        {"": "D", ".tool_use": "E", "s": ["tool_use"]},
    ),
    (
        {"chat_template": "A"},
        {"additional_chat_templates/rag.jinja": "F", "chat_template.jinja": "B"},
        {"": "B", ".rag": "F", "s": ["rag"]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "files", "want"), TEMPLATES)
def test_templates(settings: Keys, files: dict[str, str], want: Keys, tmp_path: Path) -> None:
    save(tmp_path, byte_level("qwen2"), **settings)
    (tmp_path / "additional_chat_templates").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    keys, _ = read(tmp_path)
    found = {k: v for k, v in keys.items() if k.startswith("tokenizer.chat_template")}
    assert found == {f"tokenizer.chat_template{k}": v for k, v in want.items()}


# The way of cutting ------------------------------------------------------------------------------


def test_the_probe_text_tells_all_ways_of_cutting_apart() -> None:
    """Of two names that cut it alike, only one way of cutting may be known."""
    ways: dict[tuple[str, ...], tuple[str, ...]] = {}
    for rule in PRE_TOKENIZERS.values():
        cut = tuple(_cut(rule, PROBE))
        assert ways.setdefault(cut, rule.patterns) == rule.patterns


_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NEARLY = {
    "tekken": _CASED % ("", "", ""),
    "gpt-4o": _CASED % ("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}"),
}


@pytest.mark.parametrize("name", NEARLY)
def test_what_llama_cpp_does_nearly(name: str, tmp_path: Path) -> None:
    """It knows upper and lower case of ASCII letters alone."""
    definition = json.loads(byte_level("qwen2"))
    definition["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": NEARLY[name]}
    keys, notes = read(save(tmp_path, json.dumps(definition)))
    assert keys["tokenizer.ggml.pre"] == name
    assert "cuts some texts beyond ASCII differently" in notes[0]


def test_single_digits_before_gpt2(tmp_path: Path) -> None:
    """As SmolLM and StarCoder cut."""
    definition = json.loads(byte_level(None))
    cuts = definition["pre_tokenizer"]["pretokenizers"]
    cuts.insert(0, {"type": "Digits", "individual_digits": True})
    keys, notes = read(save(tmp_path, json.dumps(definition)))
    assert notes == []
    assert PRE_TOKENIZERS[keys["tokenizer.ggml.pre"]] == PRE_TOKENIZERS["smollm"]


def test_an_unknown_way_of_cutting_is_refused(tmp_path: Path) -> None:
    definition = json.loads(byte_level("qwen2"))
    definition["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "[aeiou]+"}
    save(tmp_path, json.dumps(definition))
    with pytest.raises(ModelError, match="--pre NAME"):
        read(tmp_path)
    keys, notes = read(tmp_path, pre="qwen2")
    assert keys["tokenizer.ggml.pre"] == "qwen2"
    assert "probe texts get other ids" in notes[0]
    with pytest.raises(ModelError, match="nearest: qwen2"):
        read(tmp_path, pre="qwen")


# tokenizer.model ---------------------------------------------------------------------------------

PIECES = [
    ("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3),
    *[(f"<0x{b:02X}>", 0.0, 6) for b in range(256)],
    ("\u2581t", -1.0, 1), ("he", -2.0, 1), ("\u2581the", -3.0, 1), ("\u2581", -4.0, 1),
    ("t", -5.0, 1), ("h", -6.0, 1), ("e", -7.0, 1), ("extra", -1.5, 4),
]  # fmt: skip


def test_proto(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentence_piece_proto(PIECES))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    )
    keys, notes = read(tmp_path)
    assert notes == []
    assert keys["tokenizer.ggml.tokens"][: len(PIECES)] == [text for text, _, _ in PIECES]
    assert keys["tokenizer.ggml.token_type"][: len(PIECES)].tolist() == [k for _, _, k in PIECES]
    assert keys["tokenizer.ggml.scores"][259] == -1.0
    ours = load_tokenizer(keys)
    ids = {text: i for i, (text, _, _) in enumerate(PIECES)}
    assert ours.encode("the he") == [1, *(ids[t] for t in ("\u2581the", "\u2581", "he"))]
    assert ours.decode(ours.encode("the ü", add_special=False)) == "the ü"


@given(data=st.binary(max_size=200) | st.binary(max_size=60).map(
    lambda tail: sentence_piece_proto(PIECES[:4]) + tail
))  # fmt: skip
def test_any_bytes_are_a_proto_or_one_line(data: bytes) -> None:
    try:
        assert parse_proto(data, "tokenizer.model").pieces
    except FileFormatError as error:
        check_line(error)


def test_a_proto_that_is_cut_off(tmp_path: Path) -> None:
    whole = sentence_piece_proto(PIECES)
    (tmp_path / "tokenizer.model").write_bytes(whole[:-1])
    with pytest.raises(FileFormatError, match="not a SentencePiece model"):
        read(tmp_path)
    save(tmp_path, sentence_piece_merges())
    keys, notes = read(tmp_path)
    assert "tokenizer.json is taken" in notes[0]
    assert keys["tokenizer.ggml.model"] == "llama"


# What is wrong is one line -----------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2000) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
PLACES = [
    ("added_tokens",), ("pre_tokenizer",), ("decoder",), ("normalizer",), ("post_processor",),
    ("model",), ("model", "vocab"), ("model", "merges"), ("model", "type"), ("model", "unk_token"),
    ("added_tokens", 0), ("added_tokens", 0, "id"), ("pre_tokenizer", "pretokenizers", 0),
    ("model", "merges", 0), ("model", "byte_fallback"),
]  # fmt: skip


@settings(max_examples=n_examples(120), deadline=None)
@given(place=st.sampled_from(PLACES), value=JSON, bytewise=st.booleans())
def test_damaged_definitions(place: tuple[Any, ...], value: Any, bytewise: bool) -> None:
    definition = json.loads(byte_level("qwen2") if bytewise else sentence_piece_merges())
    inner = definition
    try:
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
    except (KeyError, IndexError, TypeError):
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        try:
            read(save(Path(folder), json.dumps(definition)))
        except NextnError as error:
            check_line(error)


def test_added_tokens_without_a_row_or_with_a_piece_of_their_own(tmp_path: Path) -> None:
    definition = json.loads(byte_level("qwen2"))
    piece = max(definition["model"]["vocab"], key=len)
    more = {"special": True, "normalized": False}
    definition["added_tokens"] += [
        {"id": 1500, "content": "[PAD]", **more}, {"id": 900, "content": piece, **more}
    ]  # fmt: skip
    (tmp_path / "added_tokens.json").write_text('{"[PAD2]": 1600}')
    keys, notes = read(save(tmp_path, json.dumps(definition)))
    assert "added token 1600, '[PAD2]', has no row: left out" in notes
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len(tokens) == ROWS
    assert kinds[definition["model"]["vocab"][piece]] == 3
    assert (tokens[900], kinds[900]) == ("[PAD900]", 5)


def test_too_few_rows(tmp_path: Path) -> None:
    save(tmp_path, byte_level("qwen2"))
    checkpoint = ModelCheckpoint("it", Folder(tmp_path), {}, {}, [])
    with pytest.raises(FileFormatError, match="embeddings have 600 rows"):
        tokenizer_keys(checkpoint, USUAL, 600, None)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer"):
        read(tmp_path)


@pytest.fixture(scope="module")
def plain_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Original, Tokenizer]:
    definition = plain_merges()
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    folder = save(tmp_path_factory.mktemp("gemma4"), definition, **settings)
    keys, notes = read(folder, traits=GEMMA4)
    assert notes == []
    assert keys["tokenizer.ggml.model"] == "gemma4"
    assert "tokenizer.ggml.pre" not in keys
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert keys["tokenizer.ggml.add_space_prefix"] is False
    kinds = dict(zip(keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"], strict=True))
    assert kinds["<|tool_call>"] == 4  # shown, for the parser of calls
    assert kinds["<turn|>"] == 3
    assert kinds["<0x41>"] == 6
    return Original.from_str(definition), load_tokenizer(keys)


@settings(max_examples=n_examples(150), deadline=None)
@given(text=TEXTS.filter(lambda text: "\u2581" not in text))
def test_plain_ids(plain_pair: tuple[Original, Tokenizer], text: str) -> None:
    original, ours = plain_pair
    want = original.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, add_special=False) == want
    assert ours.decode(want) == text


def test_glm_tokens_that_no_file_names(tmp_path: Path) -> None:
    found = json.loads(byte_level("llama-bpe"))
    last = max(token["id"] for token in found["added_tokens"])
    texts = ("[gMASK]", "<|user|>", "<|observation|>", "<|assistant|>")
    found["added_tokens"] += [
        found["added_tokens"][0] | {"id": last + 1 + n, "content": text}
        for n, text in enumerate(texts)
    ]
    folder = save(tmp_path, json.dumps(found), eos_token="<|endoftext|>")
    keys, _ = read(folder, {"eos_token_id": [last + 2, last + 3]}, traits=GLM)
    names = keys["tokenizer.ggml.tokens"]
    assert keys["tokenizer.ggml.pre"] == "glm4"
    assert keys["tokenizer.ggml.add_bos_token"] is False
    for key, text in {
        "bos": "[gMASK]", "eos": "<|endoftext|>", "unknown": "<|endoftext|>", "eot": "<|user|>",
        "eom": "<|observation|>",
    }.items():  # fmt: skip
        assert names[keys[f"tokenizer.ggml.{key}_token_id"]] == text


def test_ranks_of_tiktoken(tmp_path: Path) -> None:
    """The vocabulary and merges of a tokenizer.json, written as Kimi has them."""
    definition = byte_level("qwen2")
    (tmp_path / "tiktoken.model").write_text(tiktoken_ranks(definition))
    n_base = len(json.loads(definition)["model"]["vocab"])
    named = {str(n_base): {"content": "[BOS]", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": named}))
    keys, notes = read(tmp_path, traits=TokenizerTraits(pre="qwen2"))
    assert notes == []
    assert keys["tokenizer.ggml.pre"] == "qwen2"
    assert keys["tokenizer.ggml.tokens"][n_base : n_base + 2] == [
        "[BOS]",
        f"<|reserved_token_{n_base + 1}|>",
    ]
    original, ours = Original.from_str(definition), load_tokenizer(keys)
    for text in (*PROBE.split("\n"), "The quick brown fox\n\n  jumps 12345", "naïve 你好"):
        text = unicodedata.normalize("NFC", text)
        want = original.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False) == want


def test_ranks_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_text("QQ== 0\nQg== 2\n")
    with pytest.raises(FileFormatError, match=r"tiktoken.model: line 2 is 'Qg== 2', not a token"):
        read(tmp_path)
