/* zoo.c: see zoo.h. */
#include "zoo.h"

#define SHAPE \
    "\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}]"
#define ONE(settings) \
    "{" SHAPE ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\"," settings "}},\"pattern\":[\"a\"]}"
#define MOE(settings)                                                                                               \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"ffn\":[{\"kind\":\"moe\"," settings "}]," \
    "\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":3}},\"pattern\":[\"a\"]}"
#define MLA(settings) \
    "{" SHAPE ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"mla\"," settings "}},\"pattern\":[\"a\"]}"
#define KDA(settings) \
    "{" SHAPE ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"kda\"," settings "}},\"pattern\":[\"a\"]}"
/* The norms of small heads bend sharply where a head is near zero; a larger eps keeps differences exact. */
#define KIND(mixer, settings)                                                                                    \
    "{" SHAPE ",\"norm_eps\":0.1,\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"" mixer "\"," settings \
    "}},\"pattern\":[\"a\"]}"
#define BLOCK(model, gqa, ffn)                                                                \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":160,\"init_std\":0.4,\"layers\":2," model \
    ",\"kinds\":{\"a\":{\"mixer\":\"gqa\"," gqa "}},\"pattern\":[\"a\"],\"ffn\":[{" ffn "}]}"
#define DMC(settings)                                                                                              \
    "{" SHAPE                                                                                                      \
    ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"dmc\",\"offset\":0.3,\"temperature\":0.5," settings \
    "}},\"pattern\":[\"a\"]}"
#define READ(owner)                                                                                              \
    "{" SHAPE                                                                                                    \
    ",\"layers\":4,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"dmc\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4," \
    "\"offset\":0.3,\"temperature\":0.5," owner                                                                  \
    "},\"b\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4},"                                     \
    "\"c\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"window\":3,\"sinks\":1}},"             \
    "\"pattern\":[\"a\",\"b\",\"c\",\"a\"],\"kv_from\":{\"1\":0,\"2\":0}}"
#define EVICT "\"evict\":true,\"offset\":0.3,\"temperature\":0.5,\"gain\":1.5"
const Animal zoo[] = {
    {"mha", ONE("\"heads\":3")},
    {"gqa", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4")},
    {"mqa", ONE("\"heads\":4,\"kv_heads\":1,\"head_dim\":6")},
    {"window", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"window\":3")},
    {"window of one", ONE("\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"window\":1")},
    {"window with sinks", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"window\":2,\"sinks\":2")},
    {"nope", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"rope\":\"none\"")},
    {"odd head, nope", ONE("\"heads\":2,\"kv_heads\":1,\"head_dim\":5,\"rope\":\"none\"")},
    {"qk norm", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"qk_norm\":true")},
    {"output gate, biases",
     ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"out_gate\":true,\"qkv_bias\":true,\"qk_norm\":true,"
         "\"rope_dims\":2")},
    {"sink scores, window", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"sink_scores\":true,\"window\":3,"
                                "\"qkv_bias\":true,\"o_bias\":true")},
    {"output gate, sink scores, shared by pairs",
     "{" SHAPE
     ",\"layers\":4,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4,"
     "\"out_gate\":true,\"sink_scores\":true}},\"pattern\":[\"a\"],\"kv_from\":{\"1\":0,\"3\":2}}"},
    {"biases", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"qkv_bias\":true,\"o_bias\":true,\"qk_norm\":true")},
    {"norms after, wide qk norm",
     BLOCK("\"norm_place\":\"post\",\"norm_eps\":0.1,\"tied\":false",
           "\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"qk_norm_wide\":true", "\"kind\":\"swiglu\",\"hidden\":10")},
    {"norms of 1 + w before and after, caps, geglu",
     "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"norm_eps\":0.1,\"norm_place\":\"both\","
     "\"norm_plus_one\":true,\"embed_scale\":3.5,\"logits_cap\":2,\"layers\":3,\"tied\":true,\"kinds\":{\"l\":{"
     "\"mixer\":"
     "\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"window\":3,\"qk_norm\":true,\"scale\":0.7,\"soft_cap\":1.5,"
     "\"rope\":{\"type\":\"default\",\"theta\":100}},\"g\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":"
     "4,"
     "\"qk_norm\":true,\"soft_cap\":1.5}},\"pattern\":[\"l\",\"g\",\"l\"],\"ffn\":[{\"kind\":\"geglu\",\"hidden\":10}]"
     "}"},
    {"multipliers, geglu by erf", BLOCK("\"residual_scale\":0.6,\"logits_divisor\":3,\"embed_scale\":2,\"tied\":true",
                                        "\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"scale\":0.3",
                                        "\"kind\":\"geglu\",\"hidden\":10,\"act\":\"erf\"")},
    {"norms after, publisher and reader, residual factor",
     "{" SHAPE
     ",\"norm_place\":\"both\",\"norm_eps\":0.1,\"residual_scale\":0.8,\"layers\":4,\"tied\":true,\"kinds\":{\"w\":{"
     "\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"window\":3},\"p\":{\"mixer\":\"gqa\",\"heads\":0,"
     "\"kv_heads\":2,\"head_dim\":4,\"qk_norm_wide\":true},\"r\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,"
     "\"head_dim\":4,\"qk_norm_wide\":true}},\"pattern\":[\"w\",\"p\",\"r\",\"r\"],\"kv_from\":{\"2\":1,\"3\":1}}"},
    {"interleaved rope", ONE("\"heads\":2,\"kv_heads\":1,\"head_dim\":6,\"rope\":{\"type\":\"default\",\"theta\":100,"
                             "\"interleaved\":true}")},
    {"inclusive rope, scaled embedding",
     "{" SHAPE
     ",\"embed_scale\":3.5,\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":1,"
     "\"head_dim\":6,\"rope\":{\"type\":\"default\",\"theta\":100,\"interleaved\":true,\"inclusive\":true}}},"
     "\"pattern\":[\"a\"]}"},
    {"llama3 rope",
     ONE("\"heads\":2,\"kv_heads\":1,\"head_dim\":6,\"rope\":{\"type\":\"llama3\",\"theta\":100,\"factor\":8,"
         "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_positions\":32}")},
    {"yarn rope",
     ONE("\"heads\":2,\"kv_heads\":1,\"head_dim\":6,\"rope\":{\"type\":\"yarn\",\"theta\":100,\"factor\":4,"
         "\"original_max_positions\":16}")},
    {"mla", MLA("\"heads\":3,\"kv_rank\":5,\"nope_dim\":4,\"rope_dim\":2,\"v_dim\":3")},
    {"mla, query latent, biases",
     MLA("\"heads\":2,\"kv_rank\":5,\"q_rank\":6,\"nope_dim\":3,\"rope_dim\":4,\"a_bias\":true,\"q_bias\":true,"
         "\"o_bias\":true,\"rope\":{\"type\":\"default\",\"theta\":100,\"interleaved\":true}")},
    {"mla, a gate for each head",
     MLA("\"heads\":3,\"kv_rank\":5,\"q_rank\":4,\"nope_dim\":4,\"rope_dim\":2,\"v_dim\":3,\"out_gate\":true")},
    {"mla, no norms, yarn that scales the softmax",
     MLA("\"heads\":2,\"kv_rank\":4,\"q_rank\":5,\"nope_dim\":4,\"rope_dim\":6,\"v_dim\":5,\"latent_norm\":false,"
         "\"q_latent_norm\":false,\"rope\":{\"type\":\"yarn\",\"theta\":100,\"factor\":4,\"mscale\":0.7,"
         "\"mscale_all_dim\":1.5,\"original_max_positions\":16}")},
    {"mla, nope, window",
     MLA("\"heads\":2,\"kv_rank\":6,\"nope_dim\":5,\"v_dim\":3,\"window\":3,\"rope\":\"none\",\"q_bias\":true")},
    {"mla, unturned shared key, window with sinks",
     MLA("\"heads\":2,\"kv_rank\":4,\"nope_dim\":2,\"rope_dim\":3,\"rope\":\"none\",\"window\":2,\"sinks\":1")},
    {"mla, rope heads alone",
     MLA("\"heads\":4,\"kv_rank\":10,\"rope_dim\":4,\"rope_heads\":2,\"v_dim\":5,\"latent_norm\":false,\"q_bias\":true,"
         "\"a_bias\":true")},
    {"mla, rope heads, expands early",
     MLA("\"heads\":4,\"kv_rank\":12,\"nope_dim\":1,\"rope_dim\":2,\"rope_heads\":2,\"v_dim\":2")},
    {"mla, shared latents",
     "{" SHAPE ",\"layers\":4,\"tied\":false,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":3,\"kv_rank\":10,\"nope_"
     "dim\":2,\"rope_dim\":2,\"v_dim\":1},\"b\":{\"mixer\":\"mla\",\"heads\":2,\"kv_rank\":10,\"q_rank\":4,\"nope_"
     "dim\":3,"
     "\"rope_dim\":2,\"window\":4}},\"pattern\":[\"b\",\"a\",\"a\",\"b\"],\"kv_from\":{\"1\":0,\"3\":0}}"},
    {"mla beside gqa, published latents",
     "{" SHAPE
     ",\"layers\":5,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":2,\"kv_rank\":5,\"nope_dim\":2,"
     "\"rope_dim\":2},\"w\":{\"mixer\":\"gqa\",\"heads\":2,\"window\":3},\"p\":{\"mixer\":\"mla\",\"heads\":0,\"kv_"
     "rank\":5,\"rope_dim\":2}},\"pattern\":[\"a\",\"w\",\"p\",\"a\",\"a\"],\"kv_from\":{\"3\":2,\"4\":2}}"},
    {"untied, two kinds",
     "{" SHAPE
     ",\"layers\":3,\"tied\":false,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4},"
     "\"b\":{\"mixer\":\"gqa\",\"heads\":3,\"window\":3}},\"pattern\":[\"a\",\"b\",\"a\"]}"},
    {"shared by pairs (CLA)",
     "{" SHAPE
     ",\"layers\":4,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4}},"
     "\"pattern\":[\"a\"],\"kv_from\":{\"1\":0,\"3\":2}}"},
    {"publisher and readers (YOCO)",
     "{" SHAPE ",\"layers\":5,\"tied\":true,\"kinds\":{\"w\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_"
     "dim\":4,\"window\":3},"
     "\"p\":{\"mixer\":\"gqa\",\"heads\":0,\"kv_heads\":2,\"head_dim\":4,\"qk_norm\":true},\"r\":{\"mixer\":\"gqa\","
     "\"heads\":4,\"kv_heads\":2,"
     "\"head_dim\":4,\"qk_norm\":true}},\"pattern\":[\"w\",\"w\",\"p\",\"r\",\"r\"],\"kv_from\":{\"3\":2,\"4\":2}}"},
    {"windows on one slot",
     "{" SHAPE ",\"layers\":3,\"tied\":true,\"kinds\":{\"w3\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_"
     "dim\":4,\"window\":3},"
     "\"w5\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"window\":5,\"sinks\":1},\"all\":{\"mixer\":"
     "\"gqa\",\"heads\":4,"
     "\"kv_heads\":2,\"head_dim\":4}},\"pattern\":[\"w3\",\"w5\",\"all\"],\"kv_from\":{\"1\":0}}"},
    {"owner after readers", "{" SHAPE ",\"layers\":4,\"tied\":true,\"kinds\":{\"w\":{\"mixer\":\"gqa\",\"heads\":4,"
                            "\"kv_heads\":2,\"head_dim\":4,\"window\":4},"
                            "\"all\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4}},\"pattern\":[\"w\","
                            "\"all\",\"all\",\"w\"],\"kv_from\":{\"1\":0,\"2\":0}}"},
    {"mixture, softmax", MOE("\"experts\":5,\"top_k\":2,\"hidden\":7")},
    {"mixture, plain weights", MOE("\"experts\":4,\"top_k\":2,\"hidden\":5,\"norm_topk\":false,\"scale\":1.5")},
    {"mixture, sigmoid, groups, shared",
     MOE("\"experts\":8,\"top_k\":3,\"hidden\":5,\"shared\":2,\"router\":\"sigmoid\",\"scale\":2.5,\"groups\":4,"
         "\"top_groups\":2,\"bias_balance\":true")},
    {"mixture, gated shared expert of its own width",
     MOE("\"experts\":6,\"top_k\":2,\"hidden\":5,\"shared\":1,\"shared_hidden\":7,\"shared_gate\":true,\"norm_topk\":"
         "false")},
    {"mixture, biases, gpt-oss's unit",
     MOE("\"experts\":5,\"top_k\":2,\"hidden\":7,\"router_bias\":true,\"expert_bias\":true,\"limit\":0.9,"
         "\"alpha\":1.3")},
    {"mixture, biases of experts alone, by sigmoid, shared",
     MOE("\"experts\":4,\"top_k\":3,\"hidden\":5,\"shared\":1,\"router\":\"sigmoid\",\"expert_bias\":true")},
    {"mixture of squared ReLUs, shared, latent, groups",
     MOE("\"experts\":6,\"top_k\":2,\"hidden\":6,\"shared\":1,\"shared_hidden\":7,\"act\":\"relu2\",\"latent\":6,"
         "\"router\":\"sigmoid\",\"groups\":2,\"top_groups\":1,\"bias_balance\":true,\"scale\":1.5")},
    {"mixture of squared ReLUs, gated shared expert",
     MOE("\"experts\":4,\"top_k\":2,\"hidden\":8,\"shared\":2,\"shared_gate\":true,\"act\":\"relu2\"")},
    {"mixture, latent", MOE("\"experts\":5,\"top_k\":2,\"hidden\":5,\"latent\":7")},
    {"layers of one part: mamba2, squared ReLU, attention, experts",
     "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"norm_eps\":0.1,\"layers\":5,\"tied\":false,"
     "\"kinds\":{\"m\":{\"mixer\":\"mamba2\",\"heads\":4,\"head_dim\":5,\"state_size\":5,\"groups\":2},\"a\":{"
     "\"mixer\":\"gqa\",\"heads\":3,\"rope\":\"none\"},\"n\":{\"mixer\":\"none\"}},\"pattern\":[\"m\","
     "\"n\",\"a\",\"n\",\"m\"],\"ffn\":{\"mlp\":{\"kind\":\"relu2\",\"hidden\":10},\"experts\":{\"kind\":\"moe\","
     "\"experts\":5,\"top_k\":2,\"hidden\":5,\"shared\":1,\"shared_hidden\":6,\"act\":\"relu2\"},\"bare\":{\"kind\":"
     "\"none\"}},\"ffn_pattern\":[\"bare\",\"mlp\",\"bare\",\"experts\",\"bare\"]}"},
    {"squared ReLU, biases",
     BLOCK("\"norm\":\"layer\",\"tied\":true", "\"heads\":3", "\"kind\":\"relu2\",\"hidden\":10,\"bias\":true")},
    {"none between layer norms",
     "{" SHAPE ",\"norm\":\"layer\",\"layers\":3,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":3},"
     "\"n\":{\"mixer\":\"none\"}},\"pattern\":[\"n\",\"a\",\"n\"]}"},
    {"mixture of all", MOE("\"experts\":3,\"top_k\":3,\"hidden\":6,\"router\":\"sigmoid\"")},
    {"mixture of one", MOE("\"experts\":1,\"top_k\":1,\"hidden\":8,\"router\":\"sigmoid\",\"norm_topk\":false")},
    {"feed-forward parts by name, one none",
     "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"layers\":4,\"tied\":true,\"kinds\":{"
     "\"a\":{\"mixer\":\"gqa\",\"heads\":3}},\"pattern\":[\"a\"],\"ffn\":{\"dense\":{\"kind\":\"swiglu\","
     "\"hidden\":10},\"bare\":{\"kind\":\"none\"},\"experts\":{\"kind\":\"moe\",\"experts\":4,\"top_k\":2,"
     "\"hidden\":5,\"shared\":1}},\"ffn_pattern\":[\"dense\",\"bare\",\"experts\",\"bare\"]}"},
    {"parallel, a layer without feed-forward part",
     BLOCK("\"parallel\":true,\"tied\":true", "\"heads\":3", "\"kind\":\"swiglu\",\"hidden\":10},{\"kind\":\"none\"")},
    {"layer norm, learned positions, gelu",
     BLOCK("\"norm\":\"layer\",\"positions\":\"learned\",\"tied\":true",
           "\"heads\":3,\"qkv_bias\":true,\"o_bias\":true", "\"kind\":\"gelu\",\"hidden\":10")},
    {"parallel, part of a head turns",
     BLOCK("\"norm\":\"layer\",\"parallel\":true,\"tied\":false",
           "\"heads\":2,\"head_dim\":6,\"rope_dims\":4,\"qkv_bias\":true,\"o_bias\":true",
           "\"kind\":\"gelu\",\"hidden\":10,\"act\":\"erf\"")},
    {"parallel mixture, window",
     BLOCK("\"parallel\":true,\"positions\":\"learned\",\"tied\":true,\"embed_scale\":2",
           "\"heads\":4,\"kv_heads\":2,\"head_dim\":5,\"rope_dims\":2,\"window\":3,\"qk_norm\":true",
           "\"kind\":\"moe\",\"experts\":4,\"top_k\":2,\"hidden\":5")},
    {"parallel, publisher and reader",
     "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"norm\":\"layer\",\"parallel\":true,"
     "\"layers\":3,\"tied\":true,\"kinds\":{\"g\":{\"mixer\":\"retention\",\"heads\":3},"
     "\"p\":{\"mixer\":\"gqa\",\"heads\":0,\"kv_heads\":2,\"head_dim\":4},\"r\":{\"mixer\":\"gqa\",\"heads\":4,"
     "\"kv_heads\":2,\"head_dim\":4}},\"pattern\":[\"g\",\"p\",\"r\"],\"kv_from\":{\"2\":1},"
     "\"ffn\":[{\"kind\":\"gelu\",\"hidden\":10,\"bias\":false},{\"kind\":\"swiglu\",\"hidden\":8}]}"},
    {"kda", KDA("\"heads\":2,\"head_dim\":6")},
    {"kda, standard gate, more value heads",
     KDA("\"heads\":2,\"v_heads\":4,\"head_dim\":8,\"v_dim\":3,\"gate\":\"standard\",\"gate_rank\":2,\"out_rank\":3")},
    {"kda, no convolution, full gate, beta 2",
     KDA("\"heads\":2,\"head_dim\":5,\"v_dim\":3,\"conv\":0,\"out_gate\":\"full\",\"out_bias\":true,\"beta_max\":2")},
    {"kda, full projections, silu gate, biases",
     KIND("kda",
          "\"heads\":2,\"head_dim\":5,\"v_dim\":3,\"conv\":3,\"conv_bias\":true,\"gate_proj\":\"full\",\"out_gate\":"
          "\"full\",\"out_act\":\"silu\"")},
    {"kda, no output gate, more value heads",
     KIND("kda", "\"heads\":2,\"v_heads\":4,\"head_dim\":6,\"v_dim\":5,\"gate_proj\":\"full\",\"out_gate\":\"none\"")},
    {"kda, erase by channel",
     KDA("\"heads\":2,\"head_dim\":6,\"v_dim\":4,\"gate\":\"standard\",\"erase\":\"channel\",\"out_bias\":true")},
    {"kda, erase by channel, more value heads, beta 2",
     KIND("kda", "\"heads\":2,\"v_heads\":4,\"head_dim\":5,\"v_dim\":3,\"conv\":0,\"erase\":\"channel\",\"beta_max\":2,"
                 "\"out_gate\":\"none\"")},
    {"kda, fewer key heads", KIND("kda", "\"heads\":4,\"kv_heads\":2,\"head_dim\":3,\"v_dim\":5,\"conv\":2")},
    {"kda, erase by channel, fewer key heads, more value heads",
     KIND("kda",
          "\"heads\":4,\"kv_heads\":2,\"v_heads\":8,\"head_dim\":3,\"v_dim\":2,\"conv\":2,\"erase\":\"channel\"")},
    {"kda and nope attention",
     "{" SHAPE ",\"layers\":3,\"tied\":true,\"kinds\":{\"k\":{\"mixer\":\"kda\",\"heads\":2,\"head_dim\":6,\"conv\":2,"
     "\"out_bias\":true},\"f\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"rope\":\"none\"}},"
     "\"pattern\":[\"k\",\"f\",\"k\"]}"},
    {"gdn", KIND("gdn", "\"heads\":2,\"v_heads\":4,\"head_dim\":6,\"v_dim\":5")},
    {"gdn, sigmoid gate, biases of the convolution, drawn rates",
     KIND("gdn", "\"heads\":2,\"head_dim\":5,\"v_dim\":3,\"conv\":2,\"conv_bias\":true,\"gate\":\"sigmoid\",\"rates\":"
                 "\"drawn\"")},
    {"gdn, no convolution, no gate, beta 2",
     KIND("gdn", "\"heads\":2,\"head_dim\":7,\"v_dim\":3,\"conv\":0,\"gate\":\"none\",\"beta_max\":2")},
    {"gdn, comba",
     KIND("gdn",
          "\"heads\":2,\"v_heads\":4,\"head_dim\":5,\"v_dim\":3,\"conv\":3,\"gate\":\"sigmoid\",\"inner_decay\":true,"
          "\"output_correction\":true")},
    {"gdn, output correction alone",
     KIND("gdn", "\"heads\":2,\"head_dim\":5,\"v_dim\":3,\"conv\":0,\"output_correction\":true")},
    {"gdn, two householders",
     KIND("gdn",
          "\"heads\":2,\"v_heads\":4,\"head_dim\":5,\"v_dim\":3,\"conv\":2,\"conv_bias\":true,\"householders\":2,"
          "\"beta_max\":2")},
    {"gdn, fewer key heads, three householders",
     KIND("gdn", "\"heads\":4,\"kv_heads\":2,\"v_heads\":8,\"head_dim\":3,\"v_dim\":2,\"conv\":2,\"householders\":3")},
    {"gdn, levels", KIND("gdn", "\"heads\":2,\"v_heads\":4,\"head_dim\":5,\"v_dim\":3,\"conv\":2,\"levels\":3")},
    {"gdn, levels, fewer key heads, two householders",
     KIND("gdn", "\"heads\":4,\"kv_heads\":2,\"v_heads\":8,\"head_dim\":3,\"v_dim\":2,\"conv\":0,\"householders\":2,"
                 "\"levels\":4")},
    {"gdn, levels, comba",
     KIND("gdn", "\"heads\":2,\"head_dim\":5,\"v_dim\":3,\"conv\":0,\"gate\":\"none\",\"inner_decay\":true,"
                 "\"output_correction\":true,\"levels\":2")},
    {"gla, one level", KIND("gla", "\"heads\":2,\"gate_rank\":2,\"gate_divisor\":2,\"levels\":1")},
    {"retention, levels", KIND("retention", "\"heads\":3,\"v_dim\":5,\"levels\":3")},
    {"gated retention, levels", KIND("gated_retention", "\"heads\":3,\"v_dim\":5,\"gate_divisor\":1,\"levels\":5")},
    {"deltanet", KIND("deltanet", "\"heads\":2,\"v_dim\":5,\"conv\":3")},
    {"deltanet, one key head", KIND("deltanet", "\"heads\":3,\"kv_heads\":1,\"v_dim\":5,\"conv\":3")},
    {"gla, fewer key heads",
     KIND("gla", "\"heads\":4,\"kv_heads\":2,\"head_dim\":3,\"v_dim\":5,\"gate_rank\":2,\"gate_divisor\":2")},
    {"gated retention, fewer key heads",
     KIND("gated_retention",
          "\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"v_dim\":3,\"gate_divisor\":1,\"rope\":{\"type\":"
          "\"default\",\"theta\":100}")},
    {"linear attention, one key head, convolution",
     KIND("linear", "\"heads\":3,\"kv_heads\":1,\"v_dim\":5,\"conv\":3")},
    {"deltanet, gated", KIND("deltanet", "\"heads\":2,\"head_dim\":7,\"conv\":1,\"gate\":true")},
    {"gla", KIND("gla", "\"heads\":2,\"gate_rank\":2,\"gate_divisor\":2")},
    {"gla, convolution, sigmoid gate",
     KIND("gla", "\"heads\":2,\"gate_rank\":2,\"gate_divisor\":2,\"conv\":3,\"conv_bias\":true,\"gate\":\"sigmoid\"")},
    {"gla, spread rates", KIND("gla", "\"heads\":2,\"gate_rank\":2,\"gate_divisor\":2,\"rates\":\"spread\"")},
    {"gla, no gate",
     KIND("gla", "\"heads\":2,\"head_dim\":4,\"v_dim\":7,\"gate_rank\":2,\"gate_divisor\":4,\"gate\":\"none\"")},
    {"retention, convolution, no gate", KIND("retention", "\"heads\":3,\"v_dim\":5,\"conv\":2,\"gate\":\"none\"")},
    {"retention", KIND("retention", "\"heads\":3,\"v_dim\":5")},
    {"retention, nope", KIND("retention", "\"heads\":2,\"head_dim\":3,\"rope\":\"none\"")},
    {"gated retention",
     KIND("gated_retention", "\"heads\":3,\"v_dim\":5,\"gate_divisor\":1,\"rope\":{\"type\":\"default\",\"theta\":100,"
                             "\"interleaved\":true,\"inclusive\":true}")},
    {"gated retention, a bias of the decay",
     KIND("gated_retention", "\"heads\":3,\"v_dim\":5,\"gate_divisor\":1,\"rope\":\"none\",\"rates\":\"spread\"")},
    {"gated retention, convolution, no gate",
     KIND("gated_retention",
          "\"heads\":3,\"v_dim\":5,\"gate_divisor\":1,\"conv\":3,\"conv_bias\":true,\"gate\":\"none\"")},
    {"none between attention",
     "{" SHAPE ",\"layers\":3,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":3},\"n\":{\"mixer\":"
     "\"none\"}},\"pattern\":[\"a\",\"n\",\"a\"]}"},
    {"linear attention", KIND("linear", "\"heads\":3,\"v_dim\":5")},
    {"linear attention, convolution", KIND("linear", "\"heads\":3,\"v_dim\":5,\"conv\":3,\"conv_bias\":true")},
    {"mamba2", KIND("mamba2", "\"head_dim\":4,\"state_size\":5,\"groups\":2")},
    {"mamba2, sigmoid gate, conv 0",
     KIND("mamba2", "\"head_dim\":4,\"state_size\":5,\"conv\":0,\"gate\":\"sigmoid\",\"rates\":\"drawn\"")},
    {"mamba2, levels", KIND("mamba2", "\"head_dim\":4,\"state_size\":5,\"groups\":2,\"conv\":2,\"levels\":3")},
    {"mamba2, no convolution, biases", KIND("mamba2", "\"heads\":3,\"head_dim\":5,\"state_size\":4,\"conv\":1,\"conv_"
                                                      "bias\":false,\"bias\":true,\"rates\":\"drawn\"")},
    {"gated retention, publisher and reader (YOCO)",
     "{" SHAPE
     ",\"norm_eps\":0.1,\"layers\":4,\"tied\":true,\"kinds\":{\"g\":{\"mixer\":\"gated_retention\",\"heads\":3},"
     "\"p\":{\"mixer\":\"gqa\",\"heads\":0,\"kv_heads\":2,\"head_dim\":4},\"r\":{\"mixer\":\"gqa\",\"heads\":4,"
     "\"kv_heads\":2,\"head_dim\":4}},\"pattern\":[\"g\",\"g\",\"p\",\"r\"],\"kv_from\":{\"3\":2}}"},
    {"dmc", DMC("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"window\":0")},
    {"dmc, window, a lane a head", DMC("\"heads\":3,\"head_dim\":4,\"window\":3")},
    {"dmc, first lane, biases", DMC("\"heads\":3,\"kv_heads\":1,\"head_dim\":6,\"window\":2,\"lane\":\"first\",\"qkv_"
                                    "bias\":true,\"o_bias\":true,\"rope\":{\"type\":\"default\",\"theta\":100,"
                                    "\"interleaved\":true}")},
    {"dmc, long window, nope", DMC("\"heads\":4,\"kv_heads\":2,\"head_dim\":3,\"rope\":\"none\"")},
    {"dmc, newest alone", DMC("\"heads\":2,\"kv_heads\":1,\"head_dim\":4,\"window\":1")},
    {"dmc, fading lane", DMC("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"phase\":\"zero\",\"qkv_bias\":true")},
    {"dms", DMC("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"action\":\"evict\",\"delay\":2,\"gain\":1.5")},
    {"dms at once, first lane", DMC("\"heads\":3,\"kv_heads\":1,\"head_dim\":4,\"action\":\"evict\",\"lane\":\"first\","
                                    "\"gain\":1,\"qkv_bias\":true")},
    {"dms, fading lane", DMC("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"phase\":\"zero\",\"action\":\"evict\"")},
    {"dms, adapter",
     DMC("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"action\":\"evict\",\"decide\":\"adapter\",\"delay\":2,"
         "\"gain\":1.5")},
    {"dms, adapter, qk norm",
     DMC("\"heads\":3,\"kv_heads\":1,\"head_dim\":6,\"action\":\"evict\",\"decide\":\"adapter\","
         "\"gain\":1,\"qk_norm\":true,\"rope_dims\":4,\"qkv_bias\":true")},
    {"dms, qk norm", DMC("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"action\":\"evict\",\"delay\":2,\"gain\":1,"
                         "\"qk_norm\":true")},
    {"dms, qk norm, biases, first lane",
     DMC("\"heads\":3,\"kv_heads\":1,\"head_dim\":6,\"action\":\"evict\",\"lane\":\"first\",\"gain\":1,"
         "\"qk_norm\":true,\"qkv_bias\":true")},
    {"dms, about itself",
     DMC("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"action\":\"evict\",\"delay\":2,\"gain\":1.5,\"governs\":"
         "\"itself\",\"lane_turned\":true")},
    {"dms, about itself at once, adapter",
     DMC("\"heads\":3,\"kv_heads\":1,\"head_dim\":4,\"action\":\"evict\",\"decide\":\"adapter\",\"gain\":1.5,"
         "\"governs\":\"itself\"")},
    {"dmc read by others", READ("\"window\":2")},
    {"dms read by others", READ("\"action\":\"evict\",\"delay\":1,\"gain\":1")},
    {"dms, rows published for others, qk norm",
     "{" SHAPE
     ",\"layers\":4,\"tied\":true,\"kinds\":{\"w\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4,"
     "\"window\":3},\"p\":{\"mixer\":\"dmc\",\"heads\":0,\"kv_heads\":2,\"head_dim\":4,\"action\":\"evict\","
     "\"decide\":\"adapter\",\"delay\":1,\"offset\":0.3,\"temperature\":0.5,\"gain\":1.5,\"qk_norm\":true,"
     "\"qkv_bias\":true},\"r\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"qk_norm\":true},"
     "\"c\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"window\":4,\"sinks\":1}},"
     "\"pattern\":[\"w\",\"p\",\"r\",\"c\"],\"kv_from\":{\"2\":1,\"3\":1}}"},
    {"mla, evicts", MLA("\"heads\":3,\"kv_rank\":5,\"nope_dim\":4,\"rope_dim\":2,\"v_dim\":3,\"delay\":2," EVICT)},
    {"mla, evicts at once, rope heads, query latent, gate",
     MLA("\"heads\":4,\"kv_rank\":12,\"q_rank\":6,\"nope_dim\":1,\"rope_dim\":2,\"rope_heads\":2,\"v_dim\":2,"
         "\"a_bias\":true,\"out_gate\":true," EVICT)},
    {"mla, latents that evict, published and shared",
     "{" SHAPE
     ",\"layers\":6,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":3,\"kv_rank\":10,\"nope_dim\":2,"
     "\"rope_dim\":2,\"v_dim\":1,\"delay\":1," EVICT
     "},\"b\":{\"mixer\":\"mla\",\"heads\":2,\"kv_rank\":10,\"q_rank\":4,\"nope_dim\":3,\"rope_dim\":2},"
     "\"c\":{\"mixer\":\"mla\",\"heads\":2,\"kv_rank\":10,\"nope_dim\":2,\"rope_dim\":2,\"window\":4,\"sinks\":1},"
     "\"p\":{\"mixer\":\"mla\",\"heads\":0,\"kv_rank\":10,\"rope_dim\":2,\"delay\":3," EVICT
     "}},\"pattern\":[\"a\",\"b\",\"c\",\"p\",\"b\",\"c\"],\"kv_from\":{\"1\":0,\"2\":0,\"4\":3,\"5\":3}}"},
    {"kda, levels", KIND("kda", "\"heads\":2,\"v_heads\":4,\"head_dim\":5,\"v_dim\":3,\"conv\":2,\"levels\":3")},
    {"kda, levels, erase by channel, fewer key heads",
     KIND("kda", "\"heads\":4,\"kv_heads\":2,\"v_heads\":8,\"head_dim\":3,\"v_dim\":2,\"conv\":0,\"gate\":\"standard\","
                 "\"gate_proj\":\"full\",\"out_gate\":\"full\",\"out_act\":\"silu\",\"out_bias\":true,\"beta_max\":2,"
                 "\"erase\":\"channel\",\"levels\":4")},
};
int zoo_count(void) { return (int)(sizeof zoo / sizeof *zoo); }
bool zoo_decides(const Animal *a) { return strstr(a->json, "\"dmc\"") || strstr(a->json, "\"evict\":true"); }
int zoo_find(const char *name) {
    int i = 0;
    while (i < zoo_count() && strcmp(zoo[i].name, name)) i++;
    cr_assert(i < zoo_count(), "no animal %s", name);
    return i;
}

bool zoo_model(Model *m, Workspace *work, Device *dev, const ModelCfg *cfg, ModelOpts opts, Err *e) {
    if (!model_open(m, dev, cfg, opts, e)) return false;
    if (workspace_open(work, m, e)) return true;
    model_close(m);
    return false;
}
/* Adapters begin as zeros and decide nothing; here they decide. */
static void wake_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)f, (void)flags;
    if (!strstr(path, "decide_proj.weight")) return;
    for (size_t i = 0; i < tensor_count(*t); i++) R(*t)[i] = (real)(0.8 * (2 * rng_uniform(rng_name(3, path), i) - 1));
}
void zoo_open(const Animal *a, ModelCfg *cfg, Model *m, Workspace *work, Device **dev, ModelOpts opts) {
    Err e = {0};
    cr_assert(model_cfg_from_json(cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(device_open(dev, "cpu", 2, &e), "%s", e.msg);
    opts.poison = true;
    cr_assert(work ? zoo_model(m, work, *dev, cfg, opts, &e) : model_open(m, *dev, cfg, opts, &e), "%s: %s", a->name,
              e.msg);
    model_init(m, 7);
    model_fields(m, &m->w, &(Fields){.see = wake_field});
    if (work) work->progress = 0.3;
}
static void nudge_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    const double unit = REAL == F64 ? 0x1p-52 : 0x1p-23;
    uint64_t key = rng_name(*(uint64_t *)f->ctx, path);
    for (size_t i = 0; i < tensor_count(*t); i++)
        R(*t)[i] += (real)(unit * (double)R(*t)[i] * (2 * rng_uniform(key, i) - 1));
}
void model_nudge(Model *m) {
    Fields f = {.see = nudge_field, .ctx = &(uint64_t){3}};
    model_fields(m, &m->w, &f);
}
void zoo_close(ModelCfg *cfg, Model *m, Workspace *work, Device *dev) {
    if (work) workspace_close(work);
    model_close(m);
    model_cfg_free(cfg);
    device_close(dev);
}

void zoo_stat_loss(void *ctx, Tensor stat, Tensor dstat) {
    for (int b = 0; b < stat.n[0]; b++) {
        const real *s = R(stat) + (b * STATS + STAT_MERGED) * 2;
        if (s[1] == 0) continue;
        double less = 1.3 - (double)(s[0] / s[1]);
        *(double *)ctx += less * less;
        if (present(dstat)) R(dstat)[b * STATS + STAT_MERGED] = (real)(-2 * less / (double)s[1]);
    }
}

static void bind(Pass *p, int B, int N, bool history) {
    p->b = (Batch){.B = B,
                   .N = N,
                   .off = p->off,
                   .seq = p->seq,
                   .of = p->of,
                   .pos = p->pos,
                   .first = p->first,
                   .id = p->id,
                   .history = history};
}
void zoo_whole(Pass *p, int vocab) {
    static const int len[ZOO_SEQS] = {7, 8, 6};
    static const int starts[] = {0, 4, 7, 15, 16, 19}; /* rows at which documents begin */
    *p = (Pass){0};
    int N = 0, k = 0;
    for (int s = 0; s < ZOO_SEQS; s++) {
        p->off[s] = N, p->seq[s] = s, p->id[s] = (uint64_t)(100 + s);
        for (int i = 0; i < len[s]; i++, N++) {
            bool starts_here = k < 6 && starts[k] == N;
            k += starts_here;
            p->of[N] = s;
            p->first[N] = starts_here ? N : p->first[N - 1];
            p->pos[N] = N - p->first[N];
            p->tok[N] = (int)(rng_mix(1, (uint64_t)N) % (uint64_t)vocab);
            p->tgt[N] = (int)(rng_mix(2, (uint64_t)N) % (uint64_t)vocab);
        }
    }
    p->tgt[5] = -1; /* a row without a target */
    p->off[ZOO_SEQS] = N;
    bind(p, ZOO_SEQS, N, false);
}

void zoo_part(Pass *p, const Pass *w, const int from[ZOO_SEQS], const int n[ZOO_SEQS], int *map) {
    *p = (Pass){0};
    int N = 0;
    bool history = false;
    for (int s = 0; s < ZOO_SEQS; s++) {
        p->off[s] = N, p->seq[s] = s, p->id[s] = w->id[s];
        for (int i = 0; i < n[s]; i++, N++) {
            int row = w->off[s] + from[s] + i, first = w->first[row] - w->off[s]; /* of the document, in the sequence */
            p->of[N] = s;
            p->first[N] = first >= from[s] ? p->off[s] + first - from[s] : -1;
            history |= p->first[N] == -1;
            p->pos[N] = w->pos[row], p->tok[N] = w->tok[row], p->tgt[N] = w->tgt[row];
            if (map) map[N] = row;
        }
    }
    p->off[ZOO_SEQS] = N;
    bind(p, ZOO_SEQS, N, history);
}
