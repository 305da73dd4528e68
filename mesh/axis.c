/* SPDX-License-Identifier: Apache-2.0 */
/* The axis table, and names of axis sets. A name is a chain of axes and aliases joined by "_", "x"
 * or ",". */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/given.h"
#include "core/text.h"
#include <ndmesh/mesh.h>

static const ndm_axis_info axes_table[NDM_AXIS_COUNT] = {
    [NDM_DP_REPLICATE] = {"dp_replicate", true, "replicas of the sharded group"},
    [NDM_DP_SHARD] = {"dp_shard", true, "ranks that shard parameters and see distinct batches"},
    [NDM_CP] = {"cp", true, "ranks that share one sequence"},
    [NDM_TP] = {"tp", false, "ranks that share one layer's GEMMs"},
};

static const struct {
    const char *name;
    ndm_axis_set axes;
} words[] = {
    /* a name that begins with another stands before it */
    {"dp_replicate", NDM_AXIS_DP_REPLICATE},
    {"dp_shard", NDM_AXIS_DP_SHARD},
    {"dp", NDM_AXES_DP},
    {"cp", NDM_AXIS_CP},
    {"tp", NDM_AXIS_TP},
    {"world", NDM_AXES_ALL},
    {"self", 0},
};

enum { WORD_COUNT = sizeof words / sizeof words[0], MAX_NAME = 128 };

const ndm_axis_info *ndm_axis_table(void)
{
    return axes_table;
}

/* Lower case, "-" as "_", without blanks; false when it does not fit. */
static bool normalise(const char *text, char *name)
{
    size_t n = 0;
    for (; *text != '\0'; text++) {
        if (isspace((unsigned char)*text))
            continue;
        if (n + 1 >= MAX_NAME)
            return false;
        name[n++] = *text == '-' ? '_' : (char)tolower((unsigned char)*text);
    }
    name[n] = '\0';
    return true;
}

/* Index of the word that `name` begins with, which must end at a joiner or at the end; -1 if none.
 */
static int match_word(const char *name)
{
    for (int w = 0; w < WORD_COUNT; w++) {
        size_t n = strlen(words[w].name);
        if (strncmp(name, words[w].name, n) == 0 && strchr("_x,", name[n]) != NULL)
            return w;
    }
    return -1;
}

static ndm_status refuse(const char *text)
{
    const char *known[WORD_COUNT + 2] = {"dp_shard_cp", "dp_cp"};
    for (int w = 0; w < WORD_COUNT; w++)
        known[w + 2] = words[w].name;
    const char *nearest = ndm_text_nearest(text, known, WORD_COUNT + 2);
    if (nearest != NULL)
        NDM_FAIL(NDM_ERR_USAGE, "mesh: unknown axis set '%.64s'; did you mean '%s'?", text,
                 nearest);
    NDM_FAIL(NDM_ERR_USAGE,
             "mesh: unknown axis set '%.64s'; use dp_replicate, dp_shard, cp, tp, dp, "
             "dp_shard_cp, dp_cp or world, or several joined by 'x'",
             text);
}

ndm_status ndm_axis_set_parse(const char *text, ndm_axis_set *axes)
{
    NDM_NEED(text);
    NDM_NEED(axes);
    char name[MAX_NAME];
    ndm_axis_set set = 0;
    bool valid = normalise(text, name);
    for (const char *at = name; valid;) {
        int w = match_word(at);
        if (w < 0)
            break;
        set |= words[w].axes;
        at += strlen(words[w].name);
        if (*at == '\0') {
            *axes = set;
            return NDM_OK;
        }
        at++;
    }
    return refuse(text);
}

const char *ndm_axis_set_name(ndm_axis_set axes, char *buffer, size_t buffer_bytes)
{
    size_t used = 0;
    if (buffer == NULL || buffer_bytes == 0)
        return "";
    if (axes == 0 || axes == NDM_AXES_ALL) {
        snprintf(buffer, buffer_bytes, "%s", axes == 0 ? "self" : "world");
        return buffer;
    }
    if ((axes & NDM_AXES_DP) == NDM_AXES_DP) {
        used = (size_t)snprintf(buffer, buffer_bytes, "dp");
        axes &= ~NDM_AXES_DP;
    }
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        if ((axes & (1u << a)) != 0 && used < buffer_bytes)
            used += (size_t)snprintf(buffer + used, buffer_bytes - used, "%s%s", used ? "_" : "",
                                     axes_table[a].name);
    return buffer;
}
