"""The one operator that SGLang imports from vLLM, in plain torch."""

import torch


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
    """Rotate query and key in place: [tokens, heads * head_size] each."""
    cos, sin = cos_sin_cache[positions.flatten()].unsqueeze(1).chunk(2, dim=-1)
    for rows in (query, key):
        heads = rows.view(len(cos), -1, head_size)[..., : 2 * cos.shape[-1]]
        pair = heads.chunk(2, dim=-1) if is_neox else (heads[..., ::2], heads[..., 1::2])
        turned = (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin)
        out = torch.cat(turned, -1) if is_neox else torch.stack(turned, -1).flatten(-2)
        heads.copy_(out)
