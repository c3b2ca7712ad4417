"""Checks guided decoding of a patched vLLM 0.6.3 against the outlines that runs this file.

    python tests/e2e/guided.py DIRECTORY

DIRECTORY holds the ``vllm`` package. Only the module with the logits processors is loaded; torch,
transformers and outlines must be importable. A toy tokenizer (one token a character) stands in
for a model's, so that the text each processor allows is known. No GPU and no model is needed.
Exit status 1 when a text differs from what vLLM 0.6.3 gives with outlines 0.0.46.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

CHARACTERS = [chr(code) for code in range(32, 127)]


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {character: number for number, character in enumerate([*CHARACTERS, "</s>"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def text_of(processor: Any, end: int) -> str:
    """What is written when the first and the last allowed token are taken by turns."""
    import torch

    tokens: list[int] = []
    for _ in range(40):
        scores = torch.zeros(len(CHARACTERS) + 1)
        processor(tokens, scores)
        allowed = [number for number, score in enumerate(scores.tolist()) if score == 0]
        if end in allowed:
            break
        tokens.append(allowed[-1] if len(tokens) % 2 else allowed[0])
    return "".join(CHARACTERS[token] for token in tokens)


def main(directory: Path) -> int:
    # outlines keeps compiled guides on disk, pickled with the code that made them.
    os.environ["OUTLINES_CACHE_DIR"] = tempfile.mkdtemp(prefix="guided-")
    sys.path.insert(0, str(directory / "vllm/model_executor/guided_decoding"))
    import outlines_logits_processors as processors

    tokenizer = make_tokenizer()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    cases = {
        "regex": (processors.RegexLogitsProcessor, ("[a-z]{3}-[0-9]{2}", tokenizer), "aza-09"),
        "json": (processors.JSONLogitsProcessor, (schema, tokenizer, None), '{"a" : 9 }'),
        "grammar": (processors.CFGLogitsProcessor, ('start: "yes" | "no"', tokenizer), "no"),
    }
    failed = 0
    for name, (kind, arguments, expected) in cases.items():
        found = text_of(kind(*arguments), tokenizer.eos_token_id)
        failed += found != expected
        print(f"{name}: {found!r}{'' if found == expected else f', expected {expected!r}'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
