/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of the last collectives, and its dump. */
#include "collectives/flight.h"

#include "collectives/world.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/json.h"

uint64_t ndm_flight_add(ndm_flight *flight, const ndm_comm *comm, const ndm_signature *signature)
{
    uint64_t id = ++flight->issued;
    ndm_flight_record *r = &flight->records[id % NDM_FLIGHT_RECORDS];

    *r = (ndm_flight_record){
        .id = id, .signature = *signature, .comm = comm, .issued_ns = ndm_clock_ns()};
    return id;
}

void ndm_flight_set(ndm_flight *flight, uint64_t id, ndm_flight_state state)
{
    ndm_flight_record *r = &flight->records[id % NDM_FLIGHT_RECORDS];

    if (r->id != id)
        return;
    r->state = state;
    if (state == NDM_FLIGHT_STARTED)
        r->started_ns = ndm_clock_ns();
    else
        r->ended_ns = ndm_clock_ns();
}

const ndm_flight_record *ndm_flight_find(const ndm_flight *flight, uint32_t comm_id,
                                         uint32_t generation, uint64_t sequence)
{
    for (int i = 0; i < NDM_FLIGHT_RECORDS; i++) {
        const ndm_flight_record *r = &flight->records[i];
        if (r->id && r->signature.comm_id == comm_id && r->signature.generation == generation &&
            r->signature.sequence == sequence)
            return r;
    }
    return NULL;
}

const ndm_flight_record *ndm_flight_last_done(const ndm_flight *flight, const ndm_comm *comm)
{
    const ndm_flight_record *last = NULL;

    for (int i = 0; i < NDM_FLIGHT_RECORDS; i++) {
        const ndm_flight_record *r = &flight->records[i];
        if (r->id && r->comm == comm && r->state == NDM_FLIGHT_DONE && (!last || r->id > last->id))
            last = r;
    }
    return last;
}

bool ndm_signature_equal(const ndm_signature *a, const ndm_signature *b)
{
    return a->kind == b->kind && a->count == b->count && a->root == b->root &&
           a->dtype == b->dtype && a->recv_dtype == b->recv_dtype && a->op == b->op;
}

const char *ndm_signature_text(const ndm_signature *signature, char *text, size_t text_bytes)
{
    const char *name = ndm_collective_name((ndm_collective)signature->kind);

    if (signature->kind == NDM_BARRIER)
        snprintf(text, text_bytes, "%s #%llu", name, (unsigned long long)signature->sequence);
    else
        snprintf(text, text_bytes, "%s #%llu of %lld %s%s", name,
                 (unsigned long long)signature->sequence, (long long)signature->count,
                 ndm_dtype_name((ndm_dtype)signature->dtype),
                 signature->op == NDM_MAX ? " (max)" : "");
    return text;
}

static void write_record(ndm_json *json, const ndm_flight_record *r)
{
    static const char *const states[] = {"issued", "started", "done", "failed"};

    ndm_json_begin_object(json);
    ndm_json_key_int(json, "id", (int64_t)r->id);
    ndm_json_key_string(json, "collective", ndm_collective_name((ndm_collective)r->signature.kind));
    ndm_json_key_string(json, "comm", r->signature.comm_name);
    ndm_json_key_int(json, "sequence", (int64_t)r->signature.sequence);
    ndm_json_key_int(json, "count", r->signature.count);
    ndm_json_key_string(json, "dtype", ndm_dtype_name((ndm_dtype)r->signature.dtype));
    ndm_json_key_string(json, "state", states[r->state]);
    ndm_json_key_int(json, "issued_ns", r->issued_ns);
    ndm_json_key_int(json, "started_ns", r->started_ns);
    ndm_json_key_int(json, "ended_ns", r->ended_ns);
    ndm_json_end_object(json);
}

ndm_status ndm_world_dump_flight(const ndm_world *world, const char *path)
{
    const ndm_flight *flight = &world->flight;
    uint64_t first = flight->issued >= NDM_FLIGHT_RECORDS ? flight->issued - NDM_FLIGHT_RECORDS : 0;
    ndm_buffer text = {0};
    ndm_json json;

    ndm_json_init_buffer(&json, &text, true);
    ndm_json_begin_object(&json);
    ndm_json_key_int(&json, "rank", world->rank);
    ndm_json_key_string(&json, "host", world->ranks[world->rank].host);
    ndm_json_key_int(&json, "now_ns", ndm_clock_ns());
    ndm_json_key(&json, "records");
    ndm_json_begin_array(&json);
    for (uint64_t id = first + 1; id <= flight->issued; id++)
        write_record(&json, &flight->records[id % NDM_FLIGHT_RECORDS]);
    ndm_json_end_array(&json);
    ndm_json_end_object(&json);
    ndm_status status = ndm_json_finish(&json);
    if (status == NDM_OK)
        status = ndm_file_write(path, text.data, text.length);
    ndm_buffer_finish(&text);
    return status;
}
