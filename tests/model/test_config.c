/* Model configurations: presets and their parameter counts, reading and writing Hugging Face's config.json, and errors for everything that is not
 * supported. */
#include "model/config.h"
#include "core/fs.h"
#include "core/mem.h"
#include "cmocka_all.h"
#include "test_folder.h"
#include "assert_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ls_status from_text(const char *text, ls_model_config *c)
{
    json_t *root = NULL;
    assert_int_equal(ls_json_parse(text, strlen(text), "m.json", &root), LS_OK);
    ls_status st = ls_model_config_from_json(root, "m.json", c);
    json_decref(root);
    return st;
}

static void presets_have_the_published_sizes(void **state)
{
    (void)state;
    const struct {
        const char *name;
        int n_layer, n_head, n_embd, n_ctx, vocab_size;
        int64_t n_param; /* as published for Hugging Face's checkpoints */
    } want[] = {{"gpt2", 12, 12, 768, 1024, 50257, 124439808},
                {"gpt2-medium", 24, 16, 1024, 1024, 50257, 354823168},
                {"gpt2-large", 36, 20, 1280, 1024, 50257, 774030080},
                {"gpt2-xl", 48, 25, 1600, 1024, 50257, 1557611200},
                {"tiny", 4, 4, 128, 256, 257, 257 * 128 + 256 * 128 + 4 * (12 * 128 * 128 + 13 * 128) + 256}};
    for (size_t i = 0; i < N_OF(want); i++) {
        ls_model_config c;
        assert_int_equal(ls_model_config_preset(want[i].name, &c), LS_OK);
        assert_int_equal(c.n_layer, want[i].n_layer);
        assert_int_equal(c.n_head, want[i].n_head);
        assert_int_equal(c.n_embd, want[i].n_embd);
        assert_int_equal(c.n_ctx, want[i].n_ctx);
        assert_int_equal(c.vocab_size, want[i].vocab_size);
        assert_int_equal(c.eos_id, want[i].vocab_size - 1);
        assert_int_equal(c.variant, LS_VARIANT_HF);
        assert_int_equal(c.gelu, LS_GELU_TANH);
        assert_true(c.tied);
        assert_int_equal(ls_model_config_check(&c), LS_OK);
        assert_int_equal(ls_model_n_param(&c), want[i].n_param);
    }
    ls_model_config c;
    assert_int_equal(ls_model_config_preset("gpt3", &c), LS_E_ARG);
    assert_words("gpt2-medium");
    char words[96];
    assert_int_equal(ls_model_config_preset("gpt2", &c), LS_OK);
    assert_string_equal(ls_model_size_words(&c, words), "n_layer=12, n_head=12, n_embd=768");
}

static void variant_r1_has_its_own_head(void **state)
{
    (void)state;
    ls_model_config c;
    assert_int_equal(ls_model_config_preset("gpt2", &c), LS_OK);
    ls_model_config_set_variant(&c, LS_VARIANT_R1);
    assert_int_equal(ls_model_n_param(&c), 163037184); /* docs/REFERENCES.md#the-zero-scaling-study */
    assert_int_equal(c.gelu, LS_GELU_ERF);
    assert_false(c.tied);
    ls_variant v;
    assert_int_equal(ls_variant_parse("r1", &v), LS_OK);
    assert_int_equal(v, LS_VARIANT_R1);
    assert_int_equal(ls_variant_parse("R1", &v), LS_E_ARG); /* check-words: allowed */
}

static void hugging_face_configurations_are_read(void **state)
{
    (void)state;
    ls_model_config c;
    /* the keys of OpenAI's gpt2 folder, with other sizes */
    assert_int_equal(
        from_text(
            "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": 0.2,"
            "\"bos_token_id\": 9, \"embd_pdrop\": 0.3, \"eos_token_id\": 9, \"initializer_range\": 0.01,\"layer_norm_epsilon\": 1e-06, \"model_type\": \"gpt2\", \"n_ctx\": 32, \"n_embd\": 24, \"n_head\": 3,\"n_layer\": 2, \"n_positions\": 64, \"resid_pdrop\": 0.4, \"summary_activation\": null,\"summary_type\": \"cls_index\", \"task_specific_params\": {\"text-generation\": {\"do_sample\": true}},"
            "\"vocab_size\": 10, \"n_inner\": 96, \"transformers_version\": \"4.1\"}",
            &c),
        LS_OK);
    assert_int_equal(c.n_ctx, 64); /* n_positions is the size of the table; n_ctx is an old name */
    assert_int_equal(c.n_embd, 24);
    assert_int_equal(c.n_head, 3);
    assert_int_equal(c.n_layer, 2);
    assert_int_equal(c.vocab_size, 10);
    assert_int_equal(c.eos_id, 9);
    assert_true(c.attn_pdrop == 0.2 && c.embd_pdrop == 0.3 && c.resid_pdrop == 0.4 && c.ln_eps == 1e-6 &&
                c.init_range == 0.01);
    /* exact GELU and an untied head without the key lockstep_variant */
    assert_int_equal(
        from_text("{\"model_type\": \"gpt2\", \"activation_function\": \"gelu\", \"tie_word_embeddings\": false}", &c),
        LS_OK);
    assert_int_equal(c.variant, LS_VARIANT_HF);
    assert_int_equal(c.gelu, LS_GELU_ERF);
    assert_false(c.tied);
    assert_int_equal(c.n_layer, 12); /* the defaults of GPT2Config */
    assert_int_equal(
        from_text("{\"num_hidden_layers\": 1, \"hidden_size\": 8, \"num_attention_heads\": 2, \"n_ctx\": 16,"
                  "\"vocab_size\": 5e1, \"activation_function\": \"gelu_pytorch_tanh\"}",
                  &c),
        LS_OK);
    assert_int_equal(c.vocab_size, 50);
    assert_int_equal(c.eos_id, -1);
}

static void what_is_not_supported_is_refused(void **state)
{
    (void)state;
    const struct {
        const char *text;
        ls_status st;
        const char *part;
    } bad[] = {
        {"[1]", LS_E_CONFIG, "object"},
        {"{}", LS_E_CONFIG, "'n_layer' is missing"},
        {"{\"model_type\": \"llama\"}", LS_E_UNSUPPORTED, "llama"},
        {"{\"architectures\": [\"BertModel\"], \"model_type\": \"gpt2\"}", LS_E_UNSUPPORTED, "BertModel"},
        {"{\"model_type\": \"gpt2\", \"activation_function\": \"relu\"}", LS_E_UNSUPPORTED, "relu"},
        {"{\"model_type\": \"gpt2\", \"n_inner\": 1024}", LS_E_UNSUPPORTED, "= 3072"},
        {"{\"model_type\": \"gpt2\", \"scale_attn_by_inverse_layer_idx\": true}", LS_E_UNSUPPORTED,
         "scale_attn_by_inverse"},
        {"{\"model_type\": \"gpt2\", \"scale_attn_weights\": false}", LS_E_UNSUPPORTED, "scale_attn_weights"},
        {"{\"model_type\": \"gpt2\", \"add_cross_attention\": true}", LS_E_UNSUPPORTED, "cross"},
        {"{\"model_type\": \"gpt2\", \"pruned_heads\": {\"0\": [1]}}", LS_E_UNSUPPORTED, "pruned"},
        {"{\"model_type\": \"gpt2\", \"quantization_config\": {\"bits\": 8}}", LS_E_UNSUPPORTED, "quantized"},
        {"{\"model_type\": \"gpt2\", \"n_layers\": 3}", LS_E_CONFIG, "'n_layer'"},
        {"{\"model_type\": \"gpt2\", \"n_embed\": 3}", LS_E_CONFIG, "'n_embd'"},
        {"{\"model_type\": \"gpt2\", \"n_head\": 7}", LS_E_CONFIG, "768 is not a multiple of n_head 7"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 0}", LS_E_CONFIG, "n_layer"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 2.5}", LS_E_CONFIG, "whole"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": \"12\"}", LS_E_CONFIG, "whole"},
        {"{\"model_type\": \"gpt2\", \"vocab_size\": 1e12}", LS_E_CONFIG, "vocab_size"},
        {"{\"model_type\": \"gpt2\", \"attn_pdrop\": 1}", LS_E_CONFIG, "attn_pdrop"},
        {"{\"model_type\": \"gpt2\", \"attn_pdrop\": -0.1}", LS_E_CONFIG, "attn_pdrop"},
        {"{\"model_type\": \"gpt2\", \"layer_norm_epsilon\": 0}", LS_E_CONFIG, "epsilon"},
        {"{\"model_type\": \"gpt2\", \"tie_word_embeddings\": 1}", LS_E_CONFIG, "tie_word"},
        {"{\"model_type\": \"gpt2\", \"lockstep_variant\": \"r2\"}", LS_E_ARG, "r2"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 2147483647, \"n_head\": 1}", LS_E_CONFIG, "parameters"},
    };
    for (size_t i = 0; i < N_OF(bad); i++) {
        ls_model_config c, before;
        memset(&c, 0x5a, sizeof c);
        before = c;
        if (from_text(bad[i].text, &c) != bad[i].st) fail_msg("%s gave '%s'", bad[i].text, ls_err_words());
        assert_words(bad[i].part);
        assert_memory_equal(&c, &before, sizeof c); /* a refused configuration is not partly filled */
    }
}

static void a_written_configuration_reads_back(void **state)
{
    (void)state;
    for (int r1 = 0; r1 < 2; r1++) {
        ls_model_config a, b;
        ls_str s = {0};
        assert_int_equal(ls_model_config_preset("tiny", &a), LS_OK);
        ls_model_config_set_variant(&a, r1 ? LS_VARIANT_R1 : LS_VARIANT_HF);
        a.attn_pdrop = 0;
        a.eos_id = r1 ? -1 : 3;
        ls_model_config_write(&a, &s);
        assert_non_null(strstr(s.data, "\"architectures\": [\n    \"GPT2LMHeadModel\"\n  ]"));
        assert_non_null(strstr(s.data, "\"model_type\": \"gpt2\""));
        assert_non_null(strstr(s.data, "\"n_inner\": null"));
        assert_non_null(
            strstr(s.data, r1 ? "\"activation_function\": \"gelu\"" : "\"activation_function\": \"gelu_new\""));
        assert_non_null(strstr(s.data, r1 ? "\"tie_word_embeddings\": false" : "\"tie_word_embeddings\": true"));
        assert_int_equal(from_text(s.data, &b), LS_OK);
        snprintf(b.name, sizeof b.name, "%s", a.name);
        assert_string_equal(a.name, b.name);
        assert_true(a.n_layer == b.n_layer && a.n_head == b.n_head && a.n_embd == b.n_embd && a.n_ctx == b.n_ctx);
        assert_true(a.vocab_size == b.vocab_size && a.variant == b.variant && a.gelu == b.gelu && a.tied == b.tied);
        assert_true(a.embd_pdrop == b.embd_pdrop && a.attn_pdrop == b.attn_pdrop && a.resid_pdrop == b.resid_pdrop);
        assert_true(a.ln_eps == b.ln_eps && a.init_range == b.init_range && a.eos_id == b.eos_id);
        ls_str_fini(&s);
    }
}

static void a_file_or_a_folder_names_a_model(void **state)
{
    (void)state;
    char *dir = test_dir(), file[160];
    ls_model_config c;
    ls_str s = {0};
    int64_t live = ls_mem_live();
    assert_int_equal(ls_model_config_load(dir, &c), LS_E_IO); /* an empty folder */
    assert_words("config.json");
    assert_int_equal(ls_model_config_preset("tiny", &c), LS_OK);
    ls_model_config_write(&c, &s);
    snprintf(file, sizeof file, "%s/config.json", dir);
    assert_int_equal(ls_fs_write(file, s.data, s.len), LS_OK);
    ls_str_fini(&s);
    assert_int_equal(ls_model_config_named(dir, &c), LS_OK);
    assert_int_equal(c.n_embd, 128);
    assert_string_equal(c.name, ls_path_base(dir));
    assert_int_equal(ls_model_config_named(file, &c), LS_OK);
    assert_int_equal(ls_fs_write(file, "{", 1), LS_OK);
    assert_int_equal(ls_model_config_named(file, &c), LS_E_FORMAT);
    assert_int_equal(ls_model_config_named("/nonexistent/model", &c), LS_E_ARG);
    assert_int_equal(ls_mem_live(), live);
    test_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_the_published_sizes),     cmocka_unit_test(variant_r1_has_its_own_head),
        cmocka_unit_test(hugging_face_configurations_are_read), cmocka_unit_test(what_is_not_supported_is_refused),
        cmocka_unit_test(a_written_configuration_reads_back),   cmocka_unit_test(a_file_or_a_folder_names_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
