"""Byte-level BPE rebuilt from metadata: splitting, merging, special tokens, chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources import Source, chat_template
from pytest_ane.models.sources.chat_template import CHARACTERS, answer_of, render
from pytest_ane.models.sources.tokenizer import SourceTokenizer, gguf_tokenizer, read_tokenizer
from tests.models.sources.checkpoints import write_tokenizer

BYTES = sorted(ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ċ Ċ"]
TOKENS = ["<|end|>", "<user>", *BYTES, *(m.replace(" ", "") for m in MERGES)]
TEMPLATE = """
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
<user>{{ message['content'] }}<|end|>
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '!' }}{% endif %}
"""
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 4] + [1] * (len(TOKENS) - 2),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.chat_template": TEMPLATE,
}


def build(**changes: Any) -> SourceTokenizer:
    """A tokenizer from the metadata above with the named keys changed, None for absent."""
    metadata = METADATA | {
        f"tokenizer.{name.replace('__', '.')}": value for name, value in changes.items()
    }
    return gguf_tokenizer(lookup(metadata), "small.gguf")


def lookup(metadata: dict[str, Any]) -> Callable[[str], Any]:
    def value(key: str) -> Any:
        if metadata.get(key) is None:
            raise SourceError(f"small.gguf: no metadata key {key!r}.")
        return metadata[key]

    return value


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are rendered without a process for each, which takes 2 s to import transformers."""

    def here(template: str, text: str, specials: Mapping[str, str]) -> str:
        return answer_of(template, text, specials)["text"]

    monkeypatch.setattr("pytest_ane.models.sources.tokenizer.render", here)


def ids(*tokens: str) -> list[int]:
    return [TOKENS.index(token) for token in tokens]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("hello", ["hello"]),
        ("hello hello", ["hello", "Ġhello"]),
        ("hellll", ["hell", "ll"]),
        ("12", ["1", "2"]),
        ("é", ["Ã", "©"]),
        ("hello<|end|>", ["hello", "<|end|>"]),
        ("<user>h", ["<user>", "h"]),
        ("<|end", ["<", "|", "e", "n", "d"]),
        ("", []),
    ],
)
def test_text_becomes_the_tokens_that_merges_and_splitting_give(
    text: str, tokens: list[str]
) -> None:
    tokenizer = build()
    assert tokenizer.encode(text) == ids(*tokens)
    assert tokenizer.decode(ids(*tokens)) == text


def test_a_text_of_which_the_vocabulary_lacks_a_part_is_no_other_text() -> None:
    """`tokenizers` would make `hello` of it, and nothing of the euro sign alone."""
    lacking = build(ggml__tokens=["<|end|>" if t in "Ãâ" else t for t in TOKENS])
    says = r"small.gguf: its vocabulary lacks some of 'hello€', of which its tokenizer makes 'hello"
    with pytest.raises(SourceError, match=says):
        lacking.encode("hello€")


@pytest.mark.usefixtures("in_process")
def test_a_chat_is_rendered_without_the_template_s_own_line_breaks() -> None:
    tokenizer = build()
    assert tokenizer.decode(tokenizer.chat("hello")) == "<user>hello<|end|>!"


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        "{% if tools is none %}plain{% endif %}{% if documents is not none %}odd{% endif %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{% for m in messages %}{{ m.role }}{% break %}{% endfor %}",
        "{{ bos_token }}{{ messages | tojson }}{{ missing }}",
    ],
)
def test_a_template_is_rendered_as_by_transformers(template: str) -> None:
    from transformers import PreTrainedTokenizerFast

    model = Tokenizer(models.WordLevel({"<s>": 0}))
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token="<s>", chat_template=template
    )
    expected = theirs.apply_chat_template(
        [{"role": "user", "content": "<Hi>"}], tokenize=False, add_generation_prompt=True
    )
    assert answer_of(template, "<Hi>", {"bos_token": "<s>"}) == {"text": expected}


def test_a_template_gets_no_more_of_the_process_than_its_values() -> None:
    assert render("{{ bos_token }}{{ messages }}{{ path }}", "é", {"bos_token": "<s>"}) == (
        "<s>[{'role': 'user', 'content': 'é'}]"
    )


def test_a_template_that_asks_for_the_day_gets_the_same_one_ever() -> None:
    """SmolLM3's and Granite's do, and prompts must not change overnight."""
    told = answer_of('{{ strftime_now("%d %B %Y") }}', "Hi", {})
    assert told == {"text": "26 July 2024"}


@pytest.mark.usefixtures("in_process")
def test_special_tokens_in_a_user_s_text_count_as_such() -> None:
    """And the template writes those before it itself."""
    assert build(ggml__add_bos_token=True, ggml__bos_token_id=0).chat("<|end|>") == ids(
        "<user>", "<|end|>", "<|end|>", "!"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml__pre": "viking"}, "small.gguf: tokenizer 'gpt2' with pre-tokenizer 'viking'"),
        ({"ggml__model": "t5"}, "small.gguf: tokenizer 't5' with pre-tokenizer 'smollm'"),
        ({"ggml__merges": ["he"]}, "is damaged (the merge 'he' is not a pair)"),
        ({"ggml__merges": ["h nowhere"]}, "Token `nowhere` out of vocabulary"),
        ({"ggml__token_type": [1]}, "is damaged (its lists of tokens are of different lengths)"),
        ({"ggml__tokens": None}, "small.gguf: no metadata key 'tokenizer.ggml.tokens'."),
    ],
)
def test_an_unknown_or_damaged_tokenizer_is_one_sentence(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError) as error:
        build(**changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% if %}", "Expected an expression, got 'end of statement block'"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for i in range(10**12) %}x{% endfor %}", "Range too big"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe."),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object"),
    ],
)
def test_a_template_that_fails_says_why_and_runs_nothing(template: str, why: str) -> None:
    assert answer_of(template, "hello", {})["error"].startswith(why)


def test_a_template_that_fails_is_one_sentence() -> None:
    says = r"^small\.gguf: its chat template fails \(division by zero\); give the prompt as text or"
    with pytest.raises(SourceError, match=says):
        build(chat_template="{{ 1 / 0 }}").chat("hello")


def test_the_default_model_s_ids(smollm2: Source) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("<|im_start|>user\n<|im_end|>") == [1, 4093, 198, 2]
    assert [tokenizer.decode([i]) for i in tokenizer.encode(" 2026")] == [" ", "2", "0", "2", "6"]


def test_the_default_model_s_chat(smollm2: Source) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.decode(tokenizer.chat("What is the capital of Japan?")) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n<|im_start|>user\nWhat is the capital of Japan?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


WORDS = ("hello", "user", ":", "answer")
BOS_TEMPLATE = (
    "{{ bos_token }}user: {{ messages[0]['content'] }}"
    "{% if add_generation_prompt %} answer{% endif %}"
)


def test_text_begins_as_the_tokenizer_says(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, WORDS)
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.encode("hello user") == [0, 2, 3]
    assert tokenizer.decode([0, 2, 3]) == "<s> hello user"


def test_nothing_is_padded_or_cut_off(tmp_path: Path) -> None:
    """The files of sentence-transformers ask for both; padding would be pooled as text."""
    write_tokenizer(tmp_path, WORDS)
    file = tmp_path / "tokenizer.json"
    table = json.loads(file.read_text())
    table["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1,
        "pad_type_id": 0, "pad_token": "<unk>",
    }  # fmt: skip
    table["truncation"] = {
        "max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right",
    }  # fmt: skip
    file.write_text(json.dumps(table))
    assert read_tokenizer(tmp_path).encode("hello user") == [0, 2, 3]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "settings",
    [
        {"chat_template": BOS_TEMPLATE, "bos_token": "<s>"},
        {"chat_template": BOS_TEMPLATE, "bos_token": {"__type": "AddedToken", "content": "<s>"}},
        {
            "chat_template": [
                {"name": "tools", "template": "x"},
                {"name": "default", "template": BOS_TEMPLATE},
            ],
            "bos_token": "<s>",
            "pad_token": None,
        },
    ],
)
def test_a_chat_has_the_template_s_bos_alone(tmp_path: Path, settings: dict[str, Any]) -> None:
    write_tokenizer(tmp_path, WORDS, **settings)
    assert read_tokenizer(tmp_path).chat("hello") == [0, 3, 4, 2, 5]


@pytest.mark.usefixtures("in_process")
def test_a_template_of_its_own_file_wins(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, WORDS, chat_template="user", bos_token="<s>")
    (tmp_path / "chat_template.jinja").write_text(BOS_TEMPLATE)
    assert read_tokenizer(tmp_path).chat("hello") == [0, 3, 4, 2, 5]


def test_no_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, WORDS, chat_template=[{"name": "tools", "template": "x"}])
    for tokenizer in (read_tokenizer(tmp_path), build(chat_template=None)):
        with pytest.raises(SourceError, match=": no chat template; give the prompt as text or ids"):
            tokenizer.chat("hello")


@pytest.mark.parametrize("text", ["", "{", '{"model": {"type": "Unheard"}}', "[]"])
def test_a_damaged_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(SourceError) as error:
        read_tokenizer(tmp_path)
    said = str(error.value)
    start = f"{tmp_path / 'tokenizer.json'}: the tokenizer is damaged or of a kind that is not"
    assert said.startswith(start)
    assert said.endswith("; fetch it again, or give prompts as ids.")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", b"\xff\xfe"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b'{"chat_template": [3]}'),
        (
            "tokenizer_config.json",
            b'{"tokenizer_class": "Y", "auto_map": {"AutoTokenizer": ["x.Y"]}}',
        ),
        ("config.json", b"[]"),
    ],
)
def test_damaged_files_beside_it(tmp_path: Path, name: str, content: bytes) -> None:
    """Code of the checkpoint's own does not run."""
    write_tokenizer(tmp_path, WORDS)
    (tmp_path / "x.py").write_text("raise SystemExit('it ran')")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError) as error:
        read_tokenizer(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'tokenizer.json'}: the tokenizer is damaged")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (f"{{{{ 'x' * {CHARACTERS + 1} }}}}", "it writes more than 1,000,000 characters"),
        ("{{ 'x' * 10 ** 11 }}", "it takes more than 1,073,741,824 bytes of memory"),
    ],
)
def test_a_template_that_takes_too_much_is_stopped(template: str, why: str) -> None:
    with pytest.raises(SourceError, match=rf"^small\.gguf: its chat template fails \({why}"):
        build(chat_template=template).chat("hello")


@pytest.mark.drawn
@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set x = 9 ** (9 ** 9) %}",
    ],
)
def test_a_template_that_never_ends_is_stopped(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 5)
    with pytest.raises(SourceError, match=r"chat template fails \(it runs for more than 5 s\)"):
        build(chat_template=template).chat("hello")


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
    ],
    ids=["load", "post-processor"],
)  # fmt: skip
def test_a_tokenizer_that_panics_is_one_sentence(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Rust's panics are no `Exception` to Python."""
    write_tokenizer(tmp_path, WORDS)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(SourceError, match=r"give prompts as ids\.$") as error:
        read_tokenizer(tmp_path).encode("hello user hello user hello")
    assert str(error.value).startswith(str(tmp_path))


def test_ids_that_no_vocabulary_has() -> None:
    with pytest.raises(SourceError, match=r"^small\.gguf: its tokenizer fails \("):
        build().decode([2**70])


def test_nothing_is_fetched_nor_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library asks the hub about some large vocabularies, and warns of much."""
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: pytest.fail("it asks the network"))
    write_tokenizer(tmp_path, [*WORDS, *(f"w{i}" for i in range(100_001))], model_max_length=2)
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch"}')
    assert read_tokenizer(tmp_path).encode("hello user hello") == [0, 2, 3, 2]
    assert read_tokenizer(tmp_path / "tokenizer.json").encode("hello") == [0, 2]
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("in_process")
def test_a_file_of_another_name_is_read_by_itself(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, WORDS, chat_template=BOS_TEMPLATE, bos_token="<s>")
    (tmp_path / "tokenizer.json").rename(tmp_path / "mine.json")
    write_tokenizer(tmp_path, WORDS[::-1], chat_template=BOS_TEMPLATE, bos_token="<s>")
    tokenizer = read_tokenizer(tmp_path / "mine.json")
    assert tokenizer.encode("hello user") == [0, 2, 3]
    assert tokenizer.chat("hello") == [0, 3, 4, 2, 5]
