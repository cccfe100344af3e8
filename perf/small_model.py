#!/usr/bin/env python3
"""Writes random token files (WORK/d) and a model of a given size (WORK/model.json).

    perf/small_model.py WORK LAYERS WIDTH SEQ
"""
# ls-bench: by name
import json
import os
import random
import struct
import sys

try:
    work, (layers, width, seq) = sys.argv[1], map(int, sys.argv[2:])
except (IndexError, ValueError):
    print(f"usage: {sys.argv[0]} WORK LAYERS WIDTH SEQ (the last three are numbers)", file=sys.stderr)
    sys.exit(2)
os.makedirs(f"{work}/d")
r = random.Random(1)
for name, n in (("train", 400000), ("val", 4096)):
    with open(f"{work}/d/{name}.bin", "wb") as f:
        f.write(struct.pack(f"<{n}H", *(r.randrange(257) for _ in range(n))))
with open(f"{work}/model.json", "w") as f:
    json.dump({"model_type": "gpt2", "vocab_size": 257, "n_positions": seq, "n_ctx": seq, "n_embd": width, "n_layer": layers,
               "n_head": width // 64}, f)
