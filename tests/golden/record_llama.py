"""Record what transformers computes on small random Llamas (`llama.npz`), so that the tests need no torch.

    make golden     # in the environment of `make test-oracle`

Weights and tokens come from seeds (`tests/llama_models.py`) and are not stored.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))
import llama_models

NEW = 16


def theirs(kind: str, seed: int, **changes: object) -> LlamaForCausalLM:
    """The model of transformers with the same weights."""
    config = LlamaConfig(**{**llama_models.SIZES, **llama_models.KINDS[kind], **changes, "pad_token_id": None})
    model = LlamaForCausalLM(config).float().eval()
    named = llama_models.tensors(llama_models.config_of(kind, **changes), seed)
    missing, unexpected = model.load_state_dict({k: torch.tensor(v) for k, v in named.items()}, strict=False)
    assert not unexpected, unexpected
    assert all(m == "lm_head.weight" for m in missing), missing
    model.tie_weights()
    return model


def facts(kind: str, seed: int, **changes: object) -> dict[str, np.ndarray]:
    """Logits, greedy continuations, loss and gradients."""
    config = llama_models.config_of(kind, **changes)
    model, tokens = theirs(kind, seed, **changes), torch.tensor(llama_models.prompt(config, seed)).long()
    logits = model(tokens).logits.detach().numpy()
    with torch.no_grad():
        greedy = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, do_sample=False, pad_token_id=0
        )
    loss = torch.nn.functional.cross_entropy(
        model(tokens).logits[:, :-1].reshape(-1, config.vocab), tokens[:, 1:].reshape(-1)
    )
    loss.backward()
    out = {"logits": logits, "greedy": greedy[:, tokens.shape[1] :].numpy().astype(np.int32), "loss": loss.item()}
    for name, p in model.named_parameters():
        out[f"grad.{name}"] = p.grad.numpy()
    return {k: np.asarray(v) for k, v in out.items()}


if __name__ == "__main__":
    stored = {}
    for number, kind in enumerate(llama_models.KINDS):
        found = facts(kind, number)
        stored[f"{kind}/logits"] = found["logits"][:, ::7]
        stored[f"{kind}/greedy"], stored[f"{kind}/loss"] = found["greedy"], found["loss"]
        for name, g in found.items():
            if name.startswith("grad."):
                # Size and a few entries of each are enough to see any difference.
                stored[f"{kind}/{name}"] = np.concatenate(
                    ([np.linalg.norm(g)], g.reshape(-1)[:: max(1, g.size // 8)][:8])
                )
    path = Path(__file__).with_name("llama.npz")
    np.savez_compressed(path, **stored)
    print(f"{path}: {path.stat().st_size} bytes, {len(stored)} arrays")
