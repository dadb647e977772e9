"""Forward passes of the target with a drafter equal to it: `python -m tests.benchmarks.drafts`.

All k drafts of a round are then accepted, so that T tokens take 1 + ceil((T - 1) / (k + 1)) passes instead of T.
Counts, not seconds: what a pass and a draft cost is a matter of size and device. Prints one JSON object, size tiny;
exits with 1 when a count is not the expected one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import torch

from harness.matrix.load import load_catalogue
from reference_trainer.config import ModelConfig
from reference_trainer.models.build import build_policy
from reference_trainer.rollout.engine import SamplingRequest
from reference_trainer.rollout.native import NativeEngine
from reference_trainer.rollout.self_drafter import SelfDrafter


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="default: qwen3, qwen3.5, gemma4")
    parser.add_argument("--tokens", type=int, default=61)
    parser.add_argument("--drafts", default="1,2,3,5")
    asked = parser.parse_args()
    catalogue = load_catalogue()
    rows: list[dict[str, Any]] = []
    for name in asked.model or ["qwen3", "qwen3.5", "gemma4"]:
        model = ModelConfig(**catalogue.models[name].sizes["tiny"])
        policy = build_policy(model, seed=0, dtype=torch.float32)
        engine = NativeEngine(policy, eos_id=None, pad_id=None, drafter=SelfDrafter())
        for drafts in (int(count) for count in asked.drafts.split(",")):
            requests = [
                SamplingRequest(prompt=(1, 2, 3, 4), seed=seed, max_tokens=asked.tokens, draft_tokens=drafts)
                for seed in range(4)
            ]
            passes = {sample.target_forwards for sample in engine.generate(requests)}
            rows.append(
                {
                    "model": name,
                    "drafts": drafts,
                    "tokens": asked.tokens,
                    "passes": sorted(passes),
                    "expected": 1 + math.ceil((asked.tokens - 1) / (drafts + 1)),
                    "factor": round(asked.tokens / max(passes), 2),
                }
            )
    print(json.dumps({"size": "tiny", "torch": torch.__version__, "rows": rows}, indent=2))
    return 0 if all(row["passes"] == [row["expected"]] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
