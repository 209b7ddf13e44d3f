/* ffn.h: settings of the feed-forward parts. */
#pragma once
#include "../mixer.h"

/* swiglu: y = Wdown (silu(Wgate x) * (Wup x)). Source: arXiv:2002.05202. */
typedef struct {
    LayerCfg base;
    int hidden;
} SwigluCfg;
