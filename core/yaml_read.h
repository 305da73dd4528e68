/* SPDX-License-Identifier: Apache-2.0 */
/* Loads one YAML document for configuration: plain data alone, so no aliases, tags or second
 * documents. */
#ifndef NDM_CORE_YAML_READ_H
#define NDM_CORE_YAML_READ_H

#include <stdbool.h>
#include <stddef.h>

#include <yaml.h>

#include <ndmesh/status.h>

/* The document, freed with yaml_document_delete(). An empty file gives a document without a root.
 * NDM_ERR_FORMAT names file and line; `name` stands for the file. */
NDM_MUST_USE ndm_status ndm_yaml_load(const char *text, size_t bytes, const char *name,
                                      yaml_document_t *document);

int ndm_yaml_line(const yaml_node_t *node);     /* from 1 */
bool ndm_yaml_is_null(const yaml_node_t *node); /* nothing, ~ or null, unquoted */

/* Text of a scalar, NULL for other nodes and for text with a NUL inside. Borrowed. */
const char *ndm_yaml_text(const yaml_node_t *node);

#endif
