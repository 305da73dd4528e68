/* SPDX-License-Identifier: Apache-2.0 */
/* A small option table with one option of every type, and one rule of every kind. */
#ifndef NDM_TESTS_UNIT_OPTION_SAMPLE_H
#define NDM_TESTS_UNIT_OPTION_SAMPLE_H

#include <math.h>
#include <string.h>

#include <core/option.h>

static inline const char *check_name(const char *text)
{
    return strchr(text, ' ') ? "a name without blanks" : NULL;
}

static const ndm_option sample_options[] = {
    {.name = "dp-shard",
     .type = NDM_OPTION_INT,
     .initial = "-1",
     .map = "auto=-1",
     .min = -1,
     .max = INFINITY,
     .synonyms = NDM_OPTION_SYNONYMS({"dp_shard_size", NULL},
                                     {"parallelism_config.dp_shard_size", NULL}),
     .help = "ranks that shard",
     .unit = "ranks",
     .group = "Mesh"},
    {.name = "zero",
     .type = NDM_OPTION_INT,
     .initial = "3",
     .min = 1,
     .max = 3,
     .help = "what is sharded",
     .group = "Mesh"},
    {.name = "beta1",
     .type = NDM_OPTION_DOUBLE,
     .initial = "0.9",
     .min = 0,
     .max = 1,
     .below_max = true,
     .help = "a decay",
     .group = "Numbers"},
    {.name = "dtype",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|fp32|bf16",
     .initial = "auto",
     .synonyms = NDM_OPTION_SYNONYMS({"bf16", "true=bf16 false=-"}),
     .help = "a type",
     .group = "Numbers"},
    {.name = "shuffle",
     .type = NDM_OPTION_BOOL,
     .initial = "false",
     .help = "any order",
     .group = "Data"},
    {.name = "data",
     .type = NDM_OPTION_LIST,
     .list_key = "path",
     .list_suffix = "weight",
     .required = true,
     .synonyms = NDM_OPTION_SYNONYMS({"datasets", NULL}),
     .value = "FILE",
     .help = "files",
     .group = "Data"},
    {.name = "wrap-classes",
     .type = NDM_OPTION_LIST,
     .commas = true,
     .check = check_name,
     .synonyms = NDM_OPTION_SYNONYMS({"fsdp_config.transformer_layer_cls_to_wrap", NULL}),
     .help = "classes",
     .group = "Data"},
    {.name = "save-dir", .type = NDM_OPTION_STRING, .help = "a folder", .group = "Data"},
    {.name = "chunk",
     .type = NDM_OPTION_SIZE,
     .initial = "64K",
     .help = "a part | of it",
     .group = "Data"},
};

static const ndm_option_rule sample_rules[] = {
    {"debug", NULL, NULL},
    {"wandb_*", NULL, NULL},
    {"load_in_8bit", "false|no", "weights stay whole"},
    {"lora_*", "false|no", "there are no adapters"},
    {"fsdp_config.offload_params", "false", "nothing is offloaded"},
    {"datasets.type", "completion", "nothing is formatted"},
    {"deepspeed_config", "false", "another engine"},
};

static const ndm_option_table sample = {
    .command = "train",
    .usage = "[RUN.yaml] [options]",
    .summary = "A sample",
    .options = sample_options,
    .n_options = sizeof sample_options / sizeof *sample_options,
    .rules = sample_rules,
    .n_rules = sizeof sample_rules / sizeof *sample_rules,
};

#endif
