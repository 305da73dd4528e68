/* SPDX-License-Identifier: Apache-2.0 */
/* The options of train: defaults, files of Accelerate and Axolotl as they are, and what is refused.
 */
#include "option_case.h"

#include <core/file.h>
#include <train/options.h>

static const char accelerate[] = "compute_environment: LOCAL_MACHINE\n"
                                 "debug: false\n"
                                 "distributed_type: FSDP\n"
                                 "downcast_bf16: 'no'\n"
                                 "enable_cpu_affinity: false\n"
                                 "fsdp_config:\n"
                                 "  fsdp_activation_checkpointing: true\n"
                                 "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                                 "  fsdp_cpu_ram_efficient_loading: true\n"
                                 "  fsdp_offload_params: false\n"
                                 "  fsdp_reshard_after_forward: false\n"
                                 "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
                                 "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"
                                 "  fsdp_version: 2\n"
                                 "machine_rank: 0\n"
                                 "main_training_function: main\n"
                                 "mixed_precision: bf16\n"
                                 "num_machines: 1\n"
                                 "num_processes: 8\n"
                                 "parallelism_config:\n"
                                 "  parallelism_config_cp_backend: torch\n"
                                 "  parallelism_config_cp_comm_strategy: allgather\n"
                                 "  parallelism_config_cp_size: 2\n"
                                 "  parallelism_config_dp_replicate_size: 1\n"
                                 "  parallelism_config_dp_shard_size: 2\n"
                                 "  parallelism_config_sp_size: 1\n"
                                 "  parallelism_config_tp_size: 2\n"
                                 "rdzv_backend: static\n"
                                 "same_network: true\n"
                                 "tpu_env: []\n"
                                 "tpu_use_cluster: false\n"
                                 "tpu_use_sudo: false\n"
                                 "use_cpu: false\n";

static void an_accelerate_file_reads_as_it_is(void **state)
{
    (void)state;
    ndm_options *o = fresh(&ndm_train_option_table);
    expect_ok(load_yaml(o, accelerate));
    assert_int_equal(ndm_option_int64(o, "dp-replicate"), 1);
    assert_int_equal(ndm_option_int64(o, "dp-shard"), 2);
    assert_int_equal(ndm_option_int64(o, "cp"), 2);
    assert_int_equal(ndm_option_int64(o, "tp"), 2);
    assert_string_equal(ndm_option_string(o, "cp-method"), "all_gather");
    assert_string_equal(ndm_option_string(o, "dtype"), "bf16");
    assert_string_equal(ndm_option_string(o, "recompute"), "full");
    assert_string_equal(ndm_option_string(o, "wrap"), "transformer_based_wrap");
    assert_string_equal(ndm_option_string(o, "wrap-classes"), "LlamaDecoderLayer");
    assert_string_equal(ndm_option_string(o, "reshard-after-forward"), "false");
    assert_string_equal(ndm_option_origin(o, "tp"), "run.yaml:27");
    ndm_options_destroy(o);
}

static const char axolotl[] = "base_model: NousResearch/Llama-3.2-1B\n"
                              "\n"
                              "load_in_8bit: false\n"
                              "load_in_4bit: false\n"
                              "strict: false\n"
                              "datasets:\n"
                              "  - path: data/train.txt\n"
                              "    type: completion\n"
                              "dataset_prepared_path: last_run_prepared\n"
                              "val_set_size: 0.0\n"
                              "output_dir: ./outputs/out\n"
                              "adapter:\n"
                              "lora_model_dir:\n"
                              "lora_r:\n"
                              "sequence_len: 8192\n"
                              "sample_packing: true\n"
                              "pad_to_sequence_len: true\n"
                              "wandb_project:\n"
                              "wandb_entity:\n"
                              "gradient_accumulation_steps: 8\n"
                              "micro_batch_size: 1\n"
                              "num_epochs: 1\n"
                              "max_steps: 100\n"
                              "optimizer: adamw_torch_fused\n"
                              "lr_scheduler: cosine\n"
                              "learning_rate: 2e-5\n"
                              "train_on_inputs: false\n"
                              "bf16: auto\n"
                              "fp16:\n"
                              "tf32: false\n"
                              "gradient_checkpointing: true\n"
                              "gradient_checkpointing_kwargs:\n"
                              "  use_reentrant: false\n"
                              "resume_from_checkpoint:\n"
                              "logging_steps: 1\n"
                              "flash_attention: true\n"
                              "warmup_steps: 10\n"
                              "evals_per_epoch: 2\n"
                              "saves_per_epoch: 1\n"
                              "weight_decay: 0.0\n"
                              "dp_shard_size: 2\n"
                              "tensor_parallel_size: 2\n"
                              "context_parallel_size: 2\n"
                              "fsdp_version: 2\n"
                              "fsdp_config:\n"
                              "  offload_params: false\n"
                              "  state_dict_type: FULL_STATE_DICT\n"
                              "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                              "  transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"
                              "  reshard_after_forward: true\n"
                              "special_tokens:\n"
                              "  pad_token: <|end_of_text|>\n";

static void an_axolotl_file_reads_as_it_is(void **state)
{
    (void)state;
    ndm_options *o = fresh(&ndm_train_option_table);
    expect_ok(load_yaml(o, axolotl));
    expect_ok(ndm_options_check(o));
    assert_string_equal(ndm_option_string(o, "model"), "NousResearch/Llama-3.2-1B");
    assert_string_equal(ndm_option_string(o, "data"), "data/train.txt");
    assert_int_equal(ndm_option_int64(o, "seq-len"), 8192);
    assert_int_equal(ndm_option_int64(o, "grad-accum"), 8);
    assert_int_equal(ndm_option_int64(o, "steps"), 100);
    assert_string_equal(ndm_option_string(o, "lr-schedule"), "cosine");
    assert_true(ndm_option_double(o, "lr") == 2e-5);
    assert_string_equal(ndm_option_string(o, "dtype"), "auto");
    assert_string_equal(ndm_option_string(o, "recompute"), "full");
    assert_int_equal(ndm_option_int64(o, "cp"), 2);
    assert_false(ndm_option_has_value(o, "resume"));
    assert_true(ndm_option_double(o, "weight-decay") == 0);
    assert_string_equal(ndm_option_string(o, "save-dir"), "./outputs/out");
    ndm_options_destroy(o);
}

static void defaults_are_those_of_the_documentation(void **state)
{
    (void)state;
    static const char *const defaults[][2] = {
        {"micro-batch", "1"},
        {"grad-accum", "1"},
        {"lr", "0.001"},
        {"lr-schedule", "constant"},
        {"warmup", "0"},
        {"min-lr-ratio", "0"},
        {"beta1", "0.9"},
        {"beta2", "0.95"},
        {"eps", "1e-08"},
        {"weight-decay", "0.1"},
        {"grad-clip", "1"},
        {"dp-replicate", "1"},
        {"dp-shard", "-1"},
        {"cp", "1"},
        {"tp", "1"},
        {"zero", "3"},
        {"reshard-after-forward", "true"},
        {"wrap", "auto"},
        {"cp-method", "auto"},
        {"sequence-parallel", "true"},
        {"reduce-dtype", "fp32"},
        {"recompute", "none"},
        {"backend", "auto"},
        {"collectives", "auto"},
        {"seed", "0"},
        {"log-every", "1"},
        {"timeout", "600"},
        {"live-units", "3"},
        {"defer-sync", "false"},
        {"defer-replicas", "true"},
        {"shuffle", "false"},
        {"label-smoothing", "0"},
        {"kernels", "auto"},
        {"threads", "0"},
        {"head-chunk", "0"},
        {"dry-run", "false"},
    };
    ndm_options *o = fresh(&ndm_train_option_table);
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        assert_string_equal(ndm_option_string(o, defaults[i][0]), defaults[i][1]);
    static const char *const none[] = {"model",     "init",      "data",         "labels",
                                       "documents", "seq-len",   "steps",        "save-dir",
                                       "resume",    "export-hf", "export-dtype", "eval-data",
                                       "metrics",   "trace",     "order",        "ranks"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(ndm_option_has_value(o, none[i]));
    ndm_options_destroy(o);
}

/* A name that stands twice would make the first win in silence. */
static void no_name_or_key_stands_twice(void **state)
{
    (void)state;
    const ndm_option_table *t = &ndm_train_option_table;
    const char *names[512];
    size_t n = 0;
    for (size_t i = 0; i < t->n_options; i++) {
        names[n++] = t->options[i].name;
        assert_non_null(t->options[i].help);
        assert_non_null(t->options[i].group);
        for (const ndm_option_synonym *s = t->options[i].synonyms; s && s->key; s++)
            names[n++] = s->key;
    }
    for (size_t i = 0; i < t->n_rules; i++)
        names[n++] = t->rules[i].key;
    assert_in_range(n, 100, 511);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            if (ndm_text_name_equal(names[i], names[j]))
                fail_msg("'%s' stands twice", names[i]);
        }
    }
}

static void maps_give_the_meaning_of_other_tools(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"cp_comm_strategy: alltoall", "cp-method", "ring"},
        {"cp_method: ulysses", "cp-method", "ulysses"},
        {"fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}", "reshard-after-forward", "false"},
        {"fsdp_config: {fsdp_sharding_strategy: 1}", "reshard-after-forward", "true"},
        {"fsdp_config: {reshard_after_forward: 4}", "reshard-after-forward", "4"},
        {"fsdp_config: {reshard_after_forward: yes}", "reshard-after-forward", "true"},
        {"fsdp_config: {min_num_params: 1e8}", "min-num-params", "100000000"},
        {"fsdp_config: {min_num_params: 0}", "min-num-params", "100000000"},
        {"mixed_precision: 'no'", "dtype", "fp32"},
        {"bf16: true\nfp16: false", "dtype", "bf16"},
        {"resume_from_checkpoint: true", "resume", "latest"},
        {"resume_from_checkpoint: out/step-00000100", "resume", "out/step-00000100"},
        {"lr_scheduler_type: constant_with_warmup", "lr-schedule", "constant"},
        {"dp_shard: auto", "dp-shard", "-1"},
        {"sequence_parallel_degree: 2", "cp", "2"},
        {"fp8_enable_fsdp_float8_all_gather: true", "fp8-gather", "true"},
        {"order: [1, 0]", "order", "1, 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ndm_options *o = fresh(&ndm_train_option_table);
        expect_ok(load_yaml(o, cases[i][0]));
        assert_string_equal(ndm_option_string(o, cases[i][1]), cases[i][2]);
        ndm_options_destroy(o);
    }
}

static void what_would_change_the_result_is_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "adapter: lora",
        "lora_r: 16",
        "load_in_8bit: true",
        "load_in_4bit: yes",
        "peft_config: {r: 8}",
        "rl: dpo",
        "fp16: true",
        "distributed_type: DEEPSPEED",
        "fsdp_config: {fsdp_offload_params: true}",
        "optimizer: muon",
        "cosine_constant_lr_ratio: 0.5",
        "val_set_size: 0.05",
        "datasets: [{path: a, type: alpaca}]",
        "parallelism_config: {sp_size: 2}",
        "fsdp: [full_shard, offload]",
        "unfrozen_parameters: [lm_head]",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ndm_options *o = fresh(&ndm_train_option_table);
        ndm_status status = load_yaml(o, cases[i]);
        if (status != NDM_ERR_CONFIG)
            fail_msg("'%s' gives %s", cases[i], ndm_status_name(status));
        assert_non_null(strstr(ndm_error_message(), "run.yaml:1: '"));
        assert_non_null(strstr(ndm_error_message(), "is refused: "));
        ndm_options_destroy(o);
    }
}

static void wrong_values_are_refused(void **state)
{
    (void)state;
    const ndm_option_table *t = &ndm_train_option_table;
    flags_refused(t, "--tp 0", "--tp: '0' is not a number of ranks, or -1 for the rest");
    flags_refused(t, "--cp -2", "--cp: -2 is below -1");
    flags_refused(t, "--zero 0", "--zero: 0 is outside [1, 3]");
    flags_refused(t, "--reshard-after-forward 1x",
                  "--reshard-after-forward: '1x' is not true, false, or a number of ranks above 1");
    flags_refused(t, "--learning-rate 1", "unknown option '--learning-rate'; did you mean '--lr'?");
    flags_refused(t, "--live-units 1", "--live-units: 1 is below 2");
    flags_refused(t, "--order 0,x", "--order: 'x' is not a rank");
    yaml_refused(
        t, "fsdp_config: {sharding_strategy: HYBRID_SHARD}", NDM_ERR_USAGE,
        "run.yaml:1: sharding_strategy: 'HYBRID_SHARD' is not said here; give dp_replicate "
        "and dp_shard");
    yaml_refused(
        t, "fsdp_config: {fsdp_sharding_strategy: 3}", NDM_ERR_USAGE,
        "run.yaml:1: fsdp_sharding_strategy: 'NO_SHARD' is not said here; give dp_shard: 1 "
        "and dp_replicate: -1");
    yaml_refused(t, "mixed_precision: fp16", NDM_ERR_USAGE,
                 "run.yaml:1: mixed_precision: 'fp16' is not one of auto, fp32, bf16");
    yaml_refused(t, "bf16: true\nmixed_precision: no", NDM_ERR_CONFIG,
                 "run.yaml:2: mixed_precision: fp32 contradicts bf16: bf16 at line 1");
}

/* docs/config.md is what `ndmesh help train --markdown` prints. */
static void the_documentation_is_up_to_date(void **state)
{
    (void)state;
    ndm_buffer written = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    ndm_options_print_markdown(&ndm_train_option_table, out);
    fclose(out);
    expect_ok(ndm_file_read(NDM_DOCS "/config.md", &written));
    if (strcmp(ndm_buffer_text(&written), text) != 0)
        fail_msg("run 'ndmesh help train --markdown > docs/config.md'");
    ndm_buffer_finish(&written);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_accelerate_file_reads_as_it_is),
        cmocka_unit_test(an_axolotl_file_reads_as_it_is),
        cmocka_unit_test(defaults_are_those_of_the_documentation),
        cmocka_unit_test(no_name_or_key_stands_twice),
        cmocka_unit_test(maps_give_the_meaning_of_other_tools),
        cmocka_unit_test(what_would_change_the_result_is_refused),
        cmocka_unit_test(wrong_values_are_refused),
        cmocka_unit_test(the_documentation_is_up_to_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
