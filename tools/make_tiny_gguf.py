#!/usr/bin/env python3
"""Write a tiny, random-weight, loadable llama GGUF, with no download.

    make_tiny_gguf.py OUT.gguf [--seed N] [--layers 2] [--dim 64]

Needs only `gguf` and `numpy`. The tokenizer is SentencePiece-style with byte fallback, so any
text can be encoded; common English words are single tokens. The weights are random, except
one hidden dimension held constant so that the output matrix can act as a bias: byte and control tokens
are pushed down, words up and the end-of-turn token sits between, so a reply is readable nonsense that ends
by itself. Same seed and versions, same bytes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gguf
import numpy as np

#: (text, score, type) of one vocabulary entry; its id is its position.
Row = tuple[str, float, gguf.TokenType]

WORDS = """
    the of and to in is that it for on with as was at by be this from or an are not have but which one all
    were can more has will when who we there been their if would what so out up about into than them some
    could time these two may then do first any my now such like our over me even most made after also did
    many before must through back years where much your way well down should because each just those people
    how too little state good very make world still own see men work long get here between both life being
    under never day same another know while last might us great old year off come since against go came
    right used take three model node router gateway token queue request answer server weight memory cache
    stream hello please thanks yes no
""".split()  # noqa: SIM905 - thirty lines of quotes would hide the words
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def vocabulary() -> tuple[list[Row], set[str]]:
    """The rows in id order, and the texts among them that are whole words."""
    kind = gguf.TokenType
    rows: list[Row] = [
        ("<unk>", 0.0, kind.UNKNOWN),
        ("<s>", 0.0, kind.CONTROL),
        ("</s>", 0.0, kind.CONTROL),
        ("<|im_start|>", 0.0, kind.CONTROL),
        ("<|im_end|>", 0.0, kind.CONTROL),
    ]
    rows += [(f"<0x{b:02X}>", 0.0, kind.BYTE) for b in range(256)]
    space = "\u2581"
    pieces = [space] + [chr(c) for c in range(33, 127)]
    # SPM merges pairs: each word needs every prefix as a piece, the whole word scoring best
    seen = dict.fromkeys(pieces)
    for word in WORDS:
        full = space + word
        for n in range(2, len(full) + 1):
            seen.setdefault(full[:n])
    wholes = {space + w for w in WORDS}
    for i, piece in enumerate(seen):
        rows.append((piece, -float(i + 1) / 10 if len(piece) > 1 else -1000.0 - i, kind.NORMAL))
    return rows, wholes


def write(path: Path, *, seed: int = 0, layers: int = 2, dim: int = 64, ctx: int = 2048) -> None:
    """Write the model. The same arguments and library versions give the same bytes."""
    heads, kv_heads = 4, 2
    rng = np.random.default_rng(seed)
    rows, wholes = vocabulary()
    n_vocab, ff, head_dim = len(rows), dim * 2, dim // heads
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_name("tiny-random-llama")
    w.add_license("cc0-1.0")
    w.add_context_length(ctx)
    w.add_embedding_length(dim)
    w.add_block_count(layers)
    w.add_feed_forward_length(ff)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_rope_dimension_count(head_dim)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(n_vocab)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    w.add_tokenizer_model("llama")
    w.add_token_list([r[0] for r in rows])
    w.add_token_scores([r[1] for r in rows])
    w.add_token_types([int(r[2]) for r in rows])
    w.add_bos_token_id(1)
    w.add_eos_token_id(4)  # <|im_end|> ends a turn
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)
    w.add_add_space_prefix(False)
    w.add_chat_template(TEMPLATE)

    def mat(out: int, inp: int, scale: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (rng.standard_normal((out, inp)) * scale).astype(np.float32)

    embed = mat(n_vocab, dim, 1.0)
    embed[:, 0] = 8.0  # the constant dimension
    head = mat(n_vocab, dim, 0.2)
    bias = np.full(n_vocab, -6.0, np.float32)
    for i, (text, _, _) in enumerate(rows):
        if text in wholes:
            bias[i] = 2.0
    head[4] = 0.0
    bias[4] = 2.85  # how readily a turn ends: a few percent a token
    head[:, 0] = bias

    def half(a: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float16]]:
        return a.astype(np.float16)

    w.add_tensor("token_embd.weight", half(embed))
    for i in range(layers):
        p = f"blk.{i}."
        w.add_tensor(p + "attn_norm.weight", np.ones(dim, np.float32))
        w.add_tensor(p + "ffn_norm.weight", np.ones(dim, np.float32))
        w.add_tensor(p + "attn_q.weight", half(mat(dim, dim, dim**-0.5)))
        w.add_tensor(p + "attn_k.weight", half(mat(kv_heads * head_dim, dim, dim**-0.5)))
        w.add_tensor(p + "attn_v.weight", half(mat(kv_heads * head_dim, dim, dim**-0.5)))
        out, down = mat(dim, dim, dim**-0.5), mat(dim, ff, ff**-0.5)
        out[0] = down[0] = 0.0  # leave the constant dimension alone
        w.add_tensor(p + "attn_output.weight", half(out))
        w.add_tensor(p + "ffn_gate.weight", half(mat(ff, dim, dim**-0.5)))
        w.add_tensor(p + "ffn_up.weight", half(mat(ff, dim, dim**-0.5)))
        w.add_tensor(p + "ffn_down.weight", half(down))
    w.add_tensor("output_norm.weight", np.ones(dim, np.float32))
    w.add_tensor("output.weight", half(head))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dim", type=int, default=64)
    given = parser.parse_args()
    # Beside, then in place: whoever finds the name finds a whole file.
    half_written = given.out.with_name(given.out.name + ".part")
    write(half_written, seed=given.seed, layers=given.layers, dim=given.dim)
    half_written.replace(given.out)


if __name__ == "__main__":
    main()
