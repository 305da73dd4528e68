/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * ndmesh: train transformers over a mesh of dp_replicate x dp_shard x cp x tp ranks.
 *
 * config -> mesh -> communicators -> strategy -> op -> kernel
 */
#ifndef NDMESH_NDMESH_H
#define NDMESH_NDMESH_H

#include <ndmesh/checkpoint.h>
#include <ndmesh/collectives.h>
#include <ndmesh/config.h>
#include <ndmesh/context.h>
#include <ndmesh/device.h>
#include <ndmesh/linear.h>
#include <ndmesh/mesh.h>
#include <ndmesh/model.h>
#include <ndmesh/optimizer.h>
#include <ndmesh/status.h>
#include <ndmesh/strategy.h>
#include <ndmesh/trainer.h>
#include <ndmesh/types.h>
#include <ndmesh/unit.h>

#endif
