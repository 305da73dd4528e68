/* SPDX-License-Identifier: Apache-2.0 */
/* The option table of `ndmesh train`, and the rules for keys that Accelerate and Axolotl files
 * carry besides. */
#include <train/options.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *check_axis(const char *text)
{
    char *end;
    long long size = strtoll(text, &end, 10);
    return *end == '\0' && end != text && size == 0 ? "a number of ranks, or -1 for the rest"
                                                    : NULL;
}

static const char *check_reshard(const char *text)
{
    char *end;
    long long ranks = strtoll(text, &end, 10);
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0 || (*end == '\0' && ranks > 1))
        return NULL;
    if (strncmp(text, "HYBRID_SHARD", strlen("HYBRID_SHARD")) == 0)
        return "said here; give dp_replicate and dp_shard";
    if (strcmp(text, "NO_SHARD") == 0)
        return "said here; give dp_shard: 1 and dp_replicate: -1";
    return "true, false, or a number of ranks above 1";
}

static const char *check_rank(const char *text)
{
    char *end;
    long long rank = strtoll(text, &end, 10);
    return *end == '\0' && rank >= 0 ? NULL : "a rank";
}

/* Parts of rows that repeat. */
#define AT_LEAST(least) .min = (least), .max = INFINITY
#define SHARE .type = NDM_OPTION_DOUBLE, .min = 0, .max = 1
#define SHARE_BELOW_1 SHARE, .below_max = true
#define FLAG .type = NDM_OPTION_BOOL, .initial = "false"
#define PATH(shown) .type = NDM_OPTION_STRING, .value = (shown)
#define AXIS                                                                                      \
    .type = NDM_OPTION_INT, .map = "auto=-1", AT_LEAST(-1), .check = check_axis, .unit = "ranks", \
    .group = "Mesh"
#define OUTPUT .group = "Evaluation and output"

/* A key at the top and inside parallelism_config, where it may also carry that prefix. */
#define MESH_KEY(name)                   \
    {name, NULL},                        \
    {                                    \
        "parallelism_config." name, NULL \
    }
#define FSDP_KEY(name)            \
    {name, NULL},                 \
    {                             \
        "fsdp_config." name, NULL \
    }

static const ndm_option options[] = {
    /* Model */
    {.name = "model",
     PATH("DIR"),
     .required = true,
     .synonyms = NDM_OPTION_SYNONYMS({"base_model", NULL}),
     .help = "folder with config.json and perhaps safetensors, a config.json, or a preset",
     .group = "Model"},
    {.name = "init",
     .type = NDM_OPTION_ENUM,
     .choices = "weights|random",
     .initially = "weights where the folder has them",
     .help = "start from the folder's weights or from random ones",
     .group = "Model"},

    /* Data */
    {.name = "data",
     .type = NDM_OPTION_LIST,
     .required = true,
     .list_key = "path",
     .list_suffix = "weight",
     .synonyms = NDM_OPTION_SYNONYMS({"datasets", NULL}),
     .value = "FILE[:WEIGHT]",
     .help = "training data, repeatable: text is read as bytes, .bin as uint16 tokens, a folder as "
             "tools/prepare.py wrote it",
     .group = "Data"},
    {.name = "labels",
     PATH("FILE"),
     .initially = "the folder's, or the tokens",
     .help = "int32 label of each token, not shifted, -100 = ignored",
     .group = "Data"},
    {.name = "documents",
     PATH("FILE"),
     .initially = "the folder's or index's, or one document",
     .help = "int64 token offsets at which documents start",
     .group = "Data"},
    {.name = "shuffle",
     FLAG,
     .help = "draw samples in a random order that the seed gives",
     .group = "Data"},
    {.name = "seq-len",
     .type = NDM_OPTION_INT,
     AT_LEAST(1),
     .synonyms = NDM_OPTION_SYNONYMS({"sequence_len", NULL}),
     .initially = "the model's",
     .unit = "tokens",
     .help = "length of a sample",
     .group = "Data"},
    {.name = "micro-batch",
     .type = NDM_OPTION_INT,
     .initial = "1",
     AT_LEAST(1),
     .synonyms = NDM_OPTION_SYNONYMS({"micro_batch_size", NULL}),
     .unit = "samples",
     .help = "batch of a data-parallel rank and forward pass",
     .group = "Data"},
    {.name = "grad-accum",
     .type = NDM_OPTION_INT,
     .initial = "1",
     AT_LEAST(1),
     .synonyms = NDM_OPTION_SYNONYMS({"gradient_accumulation_steps", NULL}),
     .help = "micro-batches of an optimizer step",
     .group = "Data"},

    /* Optimizer */
    {.name = "steps",
     .type = NDM_OPTION_INT,
     .required = true,
     AT_LEAST(0),
     .synonyms = NDM_OPTION_SYNONYMS({"max_steps", NULL}),
     .help = "optimizer steps of the whole run, resumed ones included",
     .group = "Optimizer"},
    {.name = "lr",
     .type = NDM_OPTION_DOUBLE,
     .initial = "1e-3",
     AT_LEAST(0),
     .synonyms = NDM_OPTION_SYNONYMS({"learning_rate", NULL}),
     .help = "learning rate after warm-up",
     .group = "Optimizer"},
    {.name = "lr-schedule",
     .type = NDM_OPTION_ENUM,
     .choices = "constant|linear|cosine",
     .initial = "constant",
     .synonyms = NDM_OPTION_SYNONYMS({"lr_scheduler", "constant_with_warmup=constant"},
                                     {"lr_scheduler_type", "constant_with_warmup=constant"}),
     .help = "course of the learning rate after warm-up",
     .group = "Optimizer"},
    {.name = "warmup",
     .type = NDM_OPTION_INT,
     .initial = "0",
     AT_LEAST(0),
     .synonyms = NDM_OPTION_SYNONYMS({"warmup_steps", NULL}),
     .unit = "steps",
     .help = "linear warm-up",
     .group = "Optimizer"},
    {.name = "warmup-ratio",
     SHARE,
     .initially = "off",
     .help = "linear warm-up over this share of --steps, rounded up; not beside --warmup",
     .group = "Optimizer"},
    {.name = "min-lr-ratio",
     SHARE,
     .needs = "lr-schedule=linear|lr-schedule=cosine",
     .initial = "0",
     .synonyms = NDM_OPTION_SYNONYMS({"cosine_min_lr_ratio", NULL}),
     .help = "learning rate of the last step over lr, for linear and cosine",
     .group = "Optimizer"},
    {.name = "beta1",
     SHARE_BELOW_1,
     .initial = "0.9",
     .synonyms = NDM_OPTION_SYNONYMS({"adam_beta1", NULL}),
     .help = "decay of AdamW's first moment",
     .group = "Optimizer"},
    {.name = "beta2",
     SHARE_BELOW_1,
     .initial = "0.95",
     .synonyms = NDM_OPTION_SYNONYMS({"adam_beta2", NULL}),
     .help = "decay of AdamW's second moment",
     .group = "Optimizer"},
    {.name = "eps",
     .type = NDM_OPTION_DOUBLE,
     .initial = "1e-8",
     AT_LEAST(0),
     .synonyms = NDM_OPTION_SYNONYMS({"adam_epsilon", NULL}),
     .help = "AdamW's epsilon",
     .group = "Optimizer"},
    {.name = "weight-decay",
     .type = NDM_OPTION_DOUBLE,
     .initial = "0.1",
     AT_LEAST(0),
     .help = "decoupled decay of parameters of two and more dimensions",
     .group = "Optimizer"},
    {.name = "grad-clip",
     .type = NDM_OPTION_DOUBLE,
     .initial = "1",
     AT_LEAST(0),
     .synonyms = NDM_OPTION_SYNONYMS({"max_grad_norm", NULL}),
     .help = "largest gradient norm, 0 = no clipping",
     .group = "Optimizer"},
    {.name = "grad-norm-type",
     .type = NDM_OPTION_ENUM,
     .choices = "2|inf",
     .initial = "2",
     .map = "2.0=2 infinity=inf .inf=inf",
     .synonyms = NDM_OPTION_SYNONYMS({"norm_type", NULL}),
     .help = "norm that is reported and clipped by: of all squares, or the largest element",
     .group = "Optimizer"},
    {.name = "label-smoothing",
     SHARE_BELOW_1,
     .initial = "0",
     .synonyms = NDM_OPTION_SYNONYMS({"label_smoothing_factor", NULL}),
     .help = "share of the target spread over the vocabulary",
     .group = "Optimizer"},
    {.name = "seed",
     .type = NDM_OPTION_INT,
     .initial = "0",
     AT_LEAST(0),
     .help = "of random weights and of the order of samples",
     .group = "Optimizer"},

    /* Mesh */
    {.name = "dp-replicate",
     AXIS,
     .initial = "1",
     .synonyms = NDM_OPTION_SYNONYMS(MESH_KEY("dp_replicate_size"),
                                     {"parallelism_config.dp_replicate", NULL}),
     .help = "replicas of the sharded group; one size may be -1: the rest"},
    {.name = "dp-shard",
     AXIS,
     .initial = "-1",
     .synonyms = NDM_OPTION_SYNONYMS(MESH_KEY("dp_shard_size"),
                                     {"parallelism_config.dp_shard", NULL}),
     .help = "ranks that shard the states and see distinct batches"},
    {.name = "cp",
     AXIS,
     .initial = "1",
     .synonyms = NDM_OPTION_SYNONYMS(MESH_KEY("context_parallel_size"), MESH_KEY("cp_size"),
                                     {"parallelism_config.cp", NULL},
                                     {"sequence_parallel_degree", NULL}),
     .help = "ranks that share one sequence"},
    {.name = "tp",
     AXIS,
     .initial = "1",
     .synonyms = NDM_OPTION_SYNONYMS(MESH_KEY("tensor_parallel_size"), MESH_KEY("tp_size"),
                                     {"parallelism_config.tp", NULL}),
     .help = "ranks that share one layer's matrix products"},
    {.name = "mesh",
     .type = NDM_OPTION_ENUM,
     .choices = "given|auto",
     .initial = "given",
     .help =
         "auto: the planner's fastest for the sizes that are not given, as where several are -1",
     .group = "Mesh"},
    {.name = "cluster",
     .type = NDM_OPTION_STRING,
     .value = "NAME|FILE.yaml",
     .initially = "the CPUs of this machine",
     .help = "profile of the machines that an auto mesh is planned for",
     .group = "Mesh"},
    {.name = "cp-method",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|ring|all_gather|ulysses",
     .initial = "auto",
     .map = "allgather=all_gather",
     /* Accelerate's alltoall rotates keys and values around the ring by all-to-all calls. */
     .synonyms = NDM_OPTION_SYNONYMS({"cp_comm_strategy", "alltoall=ring"},
                                     {"parallelism_config.cp_comm_strategy", "alltoall=ring"},
                                     {"parallelism_config.cp_method", NULL}),
     .help = "how attention over a split sequence communicates",
     .group = "Mesh"},
    {.name = "sequence-parallel",
     .type = NDM_OPTION_BOOL,
     .initial = "true",
     .initially = "true when tp > 1",
     .help = "split activations by token between the regions of tp",
     .group = "Mesh"},
    {.name = "tp-overlap-chunks",
     .type = NDM_OPTION_INT,
     .initial = "0",
     .initially = "0: one, nothing overlaps",
     .min = 0,
     .max = 16,
     .help =
         "parts in which tp's collectives run beside the products that they feed; arrays are then "
         "not shared",
     .group = "Mesh"},
    {.name = "order",
     .type = NDM_OPTION_LIST,
     .commas = true,
     .check = check_rank,
     .value = "R,R,...",
     .initially = "by the machine's shape",
     .help = "world rank that takes each mesh position",
     .group = "Mesh"},
    {.name = "ranks",
     .type = NDM_OPTION_INT,
     AT_LEAST(1),
     .initially = "those of mpiexec",
     .help = "start mpiexec with this many ranks",
     .group = "Mesh"},

    /* Sharding */
    {.name = "zero",
     .type = NDM_OPTION_INT,
     .initial = "3",
     .min = 1,
     .max = 3,
     .help = "what is sharded: 1 optimizer state, 2 and gradients, 3 and weights",
     .group = "Sharding"},
    {.name = "reshard-after-forward",
     PATH("true|false|K"),
     .initial = "true",
     .map = "true=true false=false",
     .check = check_reshard,
     /* Of the older sharding strategies, those two differ in this alone. */
     .synonyms = NDM_OPTION_SYNONYMS(
         {"fsdp_config.reshard_after_forward", "FULL_SHARD=true SHARD_GRAD_OP=false"},
         {"fsdp_config.sharding_strategy",
          "FULL_SHARD=true 1=true SHARD_GRAD_OP=false 2=false 3=NO_SHARD 4=HYBRID_SHARD "
          "5=HYBRID_SHARD_ZERO2"}),
     .help = "with zero 3, free gathered weights after forward; K keeps a copy sharded over K "
             "neighbours",
     .group = "Sharding"},
    {.name = "wrap",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|transformer_based_wrap|size_based_wrap",
     .initial = "auto",
     .map = "transformer=transformer_based_wrap size=size_based_wrap",
     .synonyms = NDM_OPTION_SYNONYMS({"fsdp_config.auto_wrap_policy", NULL}),
     .help = "what is gathered together; auto: by wrap-classes or min-num-params where one is "
             "given, else layers, embedding and head",
     .group = "Sharding"},
    {.name = "wrap-classes",
     .needs = "wrap=transformer_based_wrap|wrap=auto",
     .type = NDM_OPTION_LIST,
     .commas = true,
     .synonyms = NDM_OPTION_SYNONYMS(FSDP_KEY("transformer_layer_cls_to_wrap"),
                                     FSDP_KEY("transformer_cls_names_to_wrap")),
     .value = "CLASS",
     .initially = "the model's layers",
     .help = "classes whose instances are units, for transformer_based_wrap",
     .group = "Sharding"},
    {.name = "min-num-params",
     .needs = "wrap=size_based_wrap|wrap=auto",
     .type = NDM_OPTION_INT,
     .initial = "100000000",
     AT_LEAST(1),
     .synonyms = NDM_OPTION_SYNONYMS({"fsdp_config.min_num_params", "0=-"}),
     .unit = "parameters",
     .help = "least size of a unit, for size_based_wrap",
     .group = "Sharding"},
    {.name = "live-units",
     .type = NDM_OPTION_INT,
     .initial = "3",
     AT_LEAST(2),
     .help = "gathered units held at a time",
     .group = "Sharding"},
    {.name = "defer-sync",
     FLAG,
     .help = "accumulate whole gradients and reduce them at the last micro-batch",
     .group = "Sharding"},
    {.name = "defer-replicas",
     .type = NDM_OPTION_BOOL,
     .initial = "true",
     .help = "sum over dp_replicate at the last micro-batch only",
     .group = "Sharding"},

    /* Numbers and memory */
    {.name = "dtype",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|fp32|bf16",
     .initial = "auto",
     .initially = "fp32 on cpu, bf16 on cuda",
     .map = "float32=fp32 bfloat16=bf16",
     .synonyms = NDM_OPTION_SYNONYMS({"bf16", "true=bf16 full=bf16 false=- auto=-"},
                                     {"mixed_precision", "no=fp32"},
                                     {"fsdp_config.mixed_precision_policy", "no=fp32"}),
     .help = "type of gathered weights and activations; masters are fp32",
     .group = "Numbers and memory"},
    {.name = "activation-dtype",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|fp32|bf16",
     .initial = "auto",
     .initially = "fp32 on cpu, that of weights on cuda",
     .map = "float32=fp32 bfloat16=bf16",
     .help = "type of activations and their gradients; cpu kernels are slow in bf16",
     .group = "Numbers and memory"},
    {.name = "fp8",
     FLAG,
     .help = "multiply matrices of layers with 8-bit numbers (e4m3, gradients e5m2), on cpu slowly",
     .group = "Numbers and memory"},
    {.name = "fp8-gather",
     FLAG,
     .synonyms = NDM_OPTION_SYNONYMS({"fp8_enable_fsdp_float8_all_gather", NULL}),
     .help =
         "with --fp8, gather weights of these matrices as 8-bit numbers; the results are the same",
     .group = "Numbers and memory"},
    {.name = "reduce-dtype",
     .type = NDM_OPTION_ENUM,
     .choices = "fp32|bf16",
     .initial = "fp32",
     .map = "float32=fp32 bfloat16=bf16",
     .help = "type of gradients on the wire; sums are fp32",
     .group = "Numbers and memory"},
    {.name = "recompute",
     .type = NDM_OPTION_ENUM,
     .choices = "none|full|selective",
     .initial = "none",
     .synonyms = NDM_OPTION_SYNONYMS({"gradient_checkpointing", "true=full false=none"},
                                     {"fsdp_config.activation_checkpointing", "true=full false=-"}),
     .help = "ops that run again in the backward, so that less is kept: all, or (selective) "
             "norms whose output tp gathers",
     .group = "Numbers and memory"},
    {.name = "head-chunk",
     .type = NDM_OPTION_INT,
     .initial = "0",
     .initially = "0: chosen by size",
     AT_LEAST(0),
     .unit = "tokens",
     .help = "part of the batch whose logits exist at a time",
     .group = "Numbers and memory"},

    /* Machine */
    {.name = "backend",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|cpu|cuda",
     .initial = "auto",
     .help = "device that computes",
     .group = "Machine"},
    {.name = "collectives",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|self|mpi|shm|nccl|staged",
     .initial = "auto",
     .help = "transport of the collectives",
     .group = "Machine"},
    {.name = "kernels",
     PATH("NAME"),
     .initial = "auto",
     .help = "set of kernels, as 'ndmesh info' lists them",
     .group = "Machine"},
    {.name = "threads",
     .type = NDM_OPTION_INT,
     .initial = "0",
     .initially = "0: cores over local ranks",
     .min = 0,
     .max = 4096,
     .help = "threads of a rank",
     .group = "Machine"},
    {.name = "progress-thread",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|on|off",
     .initial = "auto",
     .help = "a thread that moves messages on while kernels run; auto: between nodes",
     .group = "Machine"},
    {.name = "cuda-graphs",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|on|off",
     .initial = "auto",
     .help =
         "launch steps as one graph; auto: on cuda with one micro-batch and collectives by nccl",
     .group = "Machine"},
    {.name = "bind",
     .type = NDM_OPTION_ENUM,
     .choices = "none|auto|cores",
     .initial = "auto",
     .help = "keep each rank to cores of its own; auto: where there are several memory nodes",
     .group = "Machine"},
    {.name = "host-memory",
     .type = NDM_OPTION_SIZE,
     .initially = "the machine's, or its control group's",
     AT_LEAST(0),
     .help = "memory that the ranks of a host share: a run that needs more is refused before it "
             "takes any; 0 = not checked",
     .group = "Machine"},
    {.name = "timeout",
     .type = NDM_OPTION_DOUBLE,
     .initial = "600",
     AT_LEAST(0.1),
     .unit = "seconds",
     .help = "deadline of every wait for another rank",
     .group = "Machine"},

#include <train/option_output.def>
};

static const ndm_option_rule rules[] = {
#include <train/option_rules.def>
};

const ndm_option_table ndm_train_option_table = {
    .command = "train",
    .usage = "[RUN.yaml] [options]",
    .summary = "Trains or fine-tunes a Llama-family transformer over a mesh of ranks",
    .options = options,
    .n_options = COUNT(options),
    .rules = rules,
    .n_rules = COUNT(rules),
    .file = &ndm_train_option_table,
};
