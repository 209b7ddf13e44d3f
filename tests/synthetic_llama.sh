#!/bin/bash
# A Llama checkpoint of any size whose numbers are all 0, in a sparse file that takes no disk: for measuring memory and time.
# Usage: synthetic_llama.sh DIR d_model layers heads kv_heads hidden vocab      (BF16, untied, one file)
set -eu
dir=$1 d=$2 layers=$3 heads=$4 kv=$5 hidden=$6 vocab=$7
mkdir "$dir"
cat >"$dir/config.json" <<EOF
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": $vocab, "hidden_size": $d,
 "intermediate_size": $hidden, "num_hidden_layers": $layers, "num_attention_heads": $heads, "num_key_value_heads": $kv,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
EOF
awk -v d="$d" -v L="$layers" -v H="$heads" -v G="$kv" -v F="$hidden" -v V="$vocab" '
function put(name, a, b) {
    bytes = 2 * a * (b ? b : 1)
    printf ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%.0f,%.0f]}", name, b ? a "," b : a, at, at + bytes
    at += bytes
}
BEGIN {
    printf "{\"__metadata__\":{\"format\":\"pt\"}"
    put("model.embed_tokens.weight", V, d)
    put("lm_head.weight", V, d)
    put("model.norm.weight", d)
    for (l = 0; l < L; l++) {
        p = "model.layers." l "."
        put(p "input_layernorm.weight", d); put(p "post_attention_layernorm.weight", d)
        put(p "self_attn.q_proj.weight", d, d); put(p "self_attn.o_proj.weight", d, d)
        put(p "self_attn.k_proj.weight", G * d / H, d); put(p "self_attn.v_proj.weight", G * d / H, d)
        put(p "mlp.gate_proj.weight", F, d); put(p "mlp.up_proj.weight", F, d); put(p "mlp.down_proj.weight", d, F)
    }
    printf "}"
    printf "%.0f\n", at >"'"$dir/size"'"
}' >"$dir/header"
n=$(wc -c <"$dir/header")
{ # the length of the header, 8 bytes, the least first
    for shift in 0 8 16 24; do printf "\\x$(printf %02x $((n >> shift & 255)))"; done
    printf '\0\0\0\0'
    cat "$dir/header"
} >"$dir/model.safetensors"
truncate -s $((8 + n + $(cat "$dir/size"))) "$dir/model.safetensors"
rm "$dir/header" "$dir/size"
