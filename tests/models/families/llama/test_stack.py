"""The whole float32 stack of the default model, on weights and texts everybody can check."""

from __future__ import annotations

import pytest

from pytest_ane.models.chain import Chain, Decoder
from pytest_ane.models.families import Cut
from pytest_ane.models.families._decoders import LLAMA
from pytest_ane.models.sources import Source
from pytest_ane.probes.exact_chain import reference_chain

pytestmark = pytest.mark.slow

SHARDS = (*(f"L{i:02}" for i in range(30)), *(f"head.{i}" for i in range(4)))


@pytest.fixture(scope="module")
def stack(smollm2: Source) -> Chain:
    """All 30 blocks and four head slices, loaded once."""
    return reference_chain(LLAMA.open_model(smollm2, Cut(SHARDS)), LLAMA.wiring(SHARDS))


@pytest.mark.parametrize(
    ("prompt", "chat", "continuation"),
    [
        ("The capital of France is", False, " Paris."),
        ("What is the capital of Japan?", True, "The capital of Japan is Tokyo.<|im_end|>"),
        ("1, 2, 3, 4, 5,", False, " 6, 7, 8, 9"),
        (
            "Once upon a time, there was a little girl named Lily who",
            False,
            " loved to play with her toys. One day, she found",
        ),
    ],
)
def test_known_continuations(
    smollm2: Source, stack: Chain, prompt: str, chat: bool, continuation: str
) -> None:
    """Greedy decoding, in one pass: each token of the text is the likeliest after those before."""
    tokenizer = smollm2.tokenizer
    ids = tokenizer.chat(prompt) if chat else tokenizer.encode(prompt)
    following = tokenizer.encode(continuation)
    likeliest = stack.logits([*ids, *following])[len(ids) - 1 : -1].argmax(axis=1)
    assert tokenizer.decode(likeliest.tolist()) == continuation


def test_real_hidden_states_overflow_a_norm_that_squares_in_fp16(stack: Chain) -> None:
    """Channel 507 of position 0 is 30 times what fp16 can square, 255.9."""
    before_last = Decoder(Chain(stack.embed, stack.blocks[:-1]), [504])
    first = abs(before_last.streams()["x"][0])
    assert first.argmax() == 507
    assert first.max() == pytest.approx(7900.7, rel=0.001)
