/* hf_phi3.c: the model type phi3: a llama whose q, k, v and whose gate, up are joined, with one window or none, of
 * whose heads a part may be turned. Source: transformers configuration_phi3 and modeling_phi3. */
#include "hf_file.h"

/* The part of a head that is turned is next to the rotation or in it; old files call longrope su or yarn. */
static bool phi3_ropes(const HfFile *f, HfShape *s) {
    json_t *j = json_copy((json_t *)f->j);
    const char *outer = hf_given(j, "rope_scaling") ? "rope_scaling" : "rope_parameters";
    json_t *inner = json_copy(json_object_get(j, outer));
    const HfFile in = {f->path, inner, f->e}, all = {f->path, j, f->e};
    double part;
    bool ok = hf_number(f, "partial_rotary_factor", 1, false, &part);
    if (json_is_object(inner)) {
        ok = ok && hf_number(&in, "partial_rotary_factor", part, false, &part);
        json_object_del(inner, "partial_rotary_factor");
        for (int i = 0; i < 2; i++) {
            static const char *const names[] = {"rope_type", "type"};
            const char *type = json_string_value(json_object_get(inner, names[i]));
            if (type && (!strcmp(type, "su") || !strcmp(type, "yarn")))
                json_object_set_new(inner, names[i], json_string("longrope"));
        }
        json_object_set(j, outer, inner);
        json_object_del(j, outer[5] == 's' ? "rope_parameters" : "rope_scaling");
    }
    /* transformers' class has a trained length, and no other default for it. */
    const char *type = json_string_value(json_object_get(inner, "rope_type"));
    if (!type) type = json_string_value(json_object_get(inner, "type"));
    if (type && !strcmp(type, "longrope") && !hf_given(inner, "original_max_position_embeddings") &&
        !hf_given(j, "original_max_position_embeddings"))
        json_object_set_new(j, "original_max_position_embeddings", json_integer(4096));
    ok = ok && hf_part_turned(f, part, s) && hf_rope_read(&all, 10000, s->rope);
    json_decref(inner);
    json_decref(j);
    return ok;
}
static bool phi3_read(const HfFile *f, HfShape *s) { return hf_plain_layers(f) && hf_one_window(f, 0, s); }
static bool phi3_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    if (s->nslide && s->nslide != c->layers) return hf_no(why, "layers without a window");
    if (s->g.rope.type != ROPE_DEFAULT && s->g.rope.type != ROPE_LONGROPE)
        return hf_no(why, "a rotation that is neither default nor longrope");
    return !(s->g.qk_norm || s->g.qkv_bias || s->g.o_bias) || hf_no(why, "qk_norm or biases");
}
static void phi3_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    const RopeCfg *r = &s->g.rope;
    json_object_set_new(j, "pad_token_id", json_null()); /* not the class's id, which a small vocabulary lacks */
    json_object_set_new(j, "partial_rotary_factor", json_real(hf_part_of(s)));
    json_object_set_new(j, "sliding_window", s->nslide ? json_integer(s->window) : json_null());
    json_object_set_new(j, "original_max_position_embeddings",
                        json_integer(r->original_max_positions ? r->original_max_positions : c->max_positions));
}

static const char *const phi3_keys[] = {"sliding_window", "resid_pdrop", "embd_pdrop", NULL};
static const HfMust phi3_musts[] = {{"full_attn_mod", "1"},
                                    {"interpolate_factor", "1"},
                                    {"lm_head_bias", "false"},
                                    {NULL, NULL}};
static const HfName phi3_names[] = {
    {.ours = "self_attn.q_proj.", .theirs = "self_attn.qkv_proj.", .join = "qkv", .part = 0},
    {.ours = "self_attn.k_proj.", .theirs = "self_attn.qkv_proj.", .join = "qkv", .part = 1},
    {.ours = "self_attn.v_proj.", .theirs = "self_attn.qkv_proj.", .join = "qkv", .part = 2},
    {.ours = "mlp.gate_proj.", .theirs = "mlp.gate_up_proj.", .join = "gu", .part = 0},
    {.ours = "mlp.up_proj.", .theirs = "mlp.gate_up_proj.", .join = "gu", .part = 1},
    {0},
};
const HfType hf_phi3 = {.type = "phi3",
                        .architecture = "Phi3ForCausalLM",
                        .about = "Phi 3 and Phi 4 mini: joined projections, a part of a head turned",
                        .keys = phi3_keys,
                        .musts = phi3_musts,
                        .mixer = "gqa",
                        .may = HF_PART_TURNED,
                        .ropes = phi3_ropes,
                        .read = phi3_read,
                        .holds = phi3_holds,
                        .write = phi3_write,
                        .names = phi3_names,
                        .positions = 4096,
                        .eps = 1e-5,
                        .heads = true};
