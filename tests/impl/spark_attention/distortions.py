"""Inputs far from normal, made of normal ones of shape [batch, heads, seqlen, head_dim]."""

from __future__ import annotations


def heavy_tailed(x):
    return (x.float() ** 3).clamp(-60000, 60000).to(x.dtype)


def one_huge_per_row(x):
    x = x.clone()
    x[..., 3] = 200.0
    return x


def constant_rows(x):
    return x[..., :1].expand_as(x).contiguous()


DISTORTIONS = (heavy_tailed, one_huge_per_row, constant_rows)
