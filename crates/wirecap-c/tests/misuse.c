// Uses the library correctly and incorrectly. Prints one line for each check that passed.
//
// misuse TAP PEER ENGINE SAVEFILE
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/check.h"

static wirecap_group *new_group(void) {
    wirecap_group *group = wirecap_group_new();
    check("a group gets what it needs",
          wirecap_group_add(group, tap) == 0 && wirecap_group_set_engine(group, engine) == 0
              && wirecap_group_set_direction(group, WIRECAP_DIRECTION_IN) == 0
              && wirecap_group_set_chunk(group, 16) == 0 && wirecap_group_set_pool(group, 16) == 0
              && wirecap_group_set_timestamps(group, WIRECAP_TIMESTAMPS_PACKET) == 0);
    return group;
}

static wirecap_capture *open_one(wirecap_worker **worker) {
    wirecap_group *group = new_group();
    wirecap_capture *capture = wirecap_open(group);
    if (!capture) { printf("WRONG: %s\n", wirecap_error()); exit(1); }
    wirecap_group_free(group);
    if (worker) *worker = wirecap_worker_open(capture, 0);
    return capture;
}

static void no_handles(void) {
    struct wirecap_chunk_info info;
    struct wirecap_packet packet;
    struct wirecap_account account;
    struct iovec piece;
    struct sock_filter *no_program = NULL;
    wirecap_chunk *chunk;
    uint32_t backlog;
    const int handle = WIRECAP_ERROR_HANDLE;
    check("no group", wirecap_group_free(NULL) == handle && wirecap_group_add(NULL, tap) == handle && says("the group is null"));
    check("no group to set",
          wirecap_group_add_with(NULL, tap, NULL, 0) == handle && wirecap_group_set_file(NULL, "x") == handle
              && wirecap_group_set_engine(NULL, engine) == handle && wirecap_group_set_take(NULL, 1) == handle
              && wirecap_group_set_chunk(NULL, 1) == handle && wirecap_group_set_pool(NULL, 1) == handle
              && wirecap_group_set_buffer(NULL, 1) == handle && wirecap_group_set_basic(NULL) == handle
              && wirecap_group_set_advanced(NULL, 0) == handle && wirecap_group_set_stuck_after(NULL, 1) == handle
              && wirecap_group_set_workers(NULL, 1) == handle && wirecap_group_set_warm(NULL, 1) == handle
              && wirecap_group_set_elastic(NULL) == handle && wirecap_group_set_filter(NULL, "ip") == handle
              && wirecap_group_set_filter_program(NULL, no_program, 0) == handle
              && wirecap_group_set_drop_rejected(NULL, 1) == handle && wirecap_group_set_snap_len(NULL, 1) == handle
              && wirecap_group_set_timestamps(NULL, WIRECAP_TIMESTAMPS_NONE) == handle
              && wirecap_group_set_promiscuous(NULL, 1) == handle
              && wirecap_group_set_direction(NULL, WIRECAP_DIRECTION_IN) == handle
              && wirecap_group_set_retire_after(NULL, 1) == handle && wirecap_group_set_pin(NULL, NULL, 0) == handle
              && wirecap_group_set_pin_auto(NULL) == handle);
    check("no group to open", wirecap_open(NULL) == NULL && wirecap_error_status() == handle);
    check("no capture",
          wirecap_stop(NULL) == handle && wirecap_close(NULL, NULL) == handle && wirecap_set_filter(NULL, "") == handle
              && wirecap_ring_count(NULL) == handle && wirecap_ring_name(NULL, 0) == NULL
              && wirecap_backlogs(NULL, &backlog, 1) == handle && wirecap_worker_count(NULL) == handle
              && wirecap_worker_open(NULL, 0) == NULL && wirecap_ledger_read(NULL) == NULL && says("the capture is null"));
    chunk = (wirecap_chunk *)&info;
    check("no worker",
          wirecap_worker_close(NULL) == handle && wirecap_next(NULL, 0, &chunk) == handle && !chunk
              && wirecap_worker_fd(NULL) == handle && wirecap_worker_wake(NULL) == handle);
    check("no chunk",
          wirecap_chunk_describe(NULL, &info, sizeof info) == handle && wirecap_chunk_packets(NULL, 0, &packet, sizeof packet, 1) == handle
              && wirecap_chunk_pieces(NULL, 0, &piece, 1) == handle && wirecap_recycle(NULL) == handle);
    check("no ledger",
          wirecap_ledger_free(NULL) == handle && wirecap_ledger_sum(NULL, &account) == handle
              && wirecap_ledger_ring(NULL, 0, &account) == handle && wirecap_ledger_ring_count(NULL) == handle
              && wirecap_ledger_ring_name(NULL, 0) == NULL && wirecap_ledger_duration_ns(NULL) == handle
              && wirecap_ledger_json(NULL) == NULL && wirecap_ledger_text(NULL) == NULL
              && wirecap_ledger_warnings(NULL) == NULL);
}

static void groups(void) {
    const int argument = WIRECAP_ERROR_ARGUMENT;
    wirecap_group *group = wirecap_group_new();
    uint32_t cpus[1] = { 100000 };
    check("an empty group", wirecap_open(group) == NULL && wirecap_error_status() == argument && says("wirecap_group_add"));
    check("a device without a name", wirecap_group_add(group, NULL) == argument && says("the name of the rings is null"));
    check("a name in another code", wirecap_group_add(group, "\xff\xfe") == argument && says("not UTF-8"));
    check("an engine that there is not", wirecap_group_set_engine(group, (enum wirecap_engine)7) == argument && says("invalid engine 7: expected 0 to 2"));
    check("a program without instructions", wirecap_group_set_filter_program(group, NULL, 4) == argument);
    check("CPUs that there are not", wirecap_group_set_pin(group, NULL, 1) == argument);
    check("a number is checked when it is used", wirecap_group_set_chunk(group, 0) == 0 && wirecap_group_add(group, tap) == 0
              && wirecap_open(group) == NULL && wirecap_error_status() == argument && says("M (cells per chunk)"));
    check("and may be corrected", wirecap_group_set_chunk(group, 16) == 0 && wirecap_group_set_filter(group, "tcp prot 80") == 0
              && wirecap_open(group) == NULL && wirecap_error_status() == WIRECAP_ERROR_FILTER);
    check("CPUs are looked up", wirecap_group_set_filter(group, "ip") == 0 && wirecap_group_set_pin(group, cpus, 1) == 0
              && wirecap_open(group) == NULL && wirecap_error_status() == argument && says("100000"));
    check("both rings and a file", wirecap_group_set_file(group, "trace") == 0 && wirecap_open(group) == NULL && says("not both"));
    check("a group that was freed", wirecap_group_free(group) == 0 && wirecap_group_free(group) == WIRECAP_ERROR_HANDLE
              && says("closed already") && wirecap_open(group) == NULL);
    group = wirecap_group_new();
    check("no such device", wirecap_group_add(group, "nowhere0") == 0 && wirecap_open(group) == NULL
              && wirecap_error_status() == WIRECAP_ERROR_DEVICE && says("nowhere0"));
    check("another kind of handle", wirecap_recycle((wirecap_chunk *)group) == WIRECAP_ERROR_HANDLE
              && wirecap_stop((wirecap_capture *)group) == WIRECAP_ERROR_HANDLE);
    check("an address", wirecap_group_free((wirecap_group *)&cpus) == WIRECAP_ERROR_HANDLE);
    wirecap_group_free(group);
    check("no such file", (group = wirecap_group_new()) && wirecap_group_set_file(group, "/nowhere") == 0
              && wirecap_open(group) == NULL && wirecap_error_status() == WIRECAP_ERROR_FILE);
    wirecap_group_free(group);
}

/* Counts packets until `wanted` have arrived or the time is up, and reads every byte. */
static int take(wirecap_worker *worker, int wanted) {
    int count = 0, sum = 0;
    wirecap_chunk *chunk;
    while (count < wanted && wirecap_next(worker, 10000000000, &chunk) == WIRECAP_OK) {
        struct wirecap_packet packets[3];
        struct wirecap_chunk_info info;
        uint32_t first = 0;
        uint64_t bytes = 0;
        for (int n; (n = wirecap_chunk_packets(chunk, first, packets, sizeof *packets, 3)) > 0; first += (uint32_t)n)
            for (int k = 0; k < n; k++) {
                for (uint32_t byte = 0; byte < packets[k].caplen; byte++) sum += packets[k].data[byte];
                bytes += packets[k].wire_len;
                if (packets[k].caplen != 80 || packets[k].reserved) printf("WRONG: length\n");
                if (packets[k].timestamp_ns < 1600000000000000000 || packets[k].timestamp_ns == WIRECAP_NOT_REPORTED) printf("WRONG: time\n");
            }
        wirecap_chunk_describe(chunk, &info, sizeof info);
        if (info.packets != first || info.wire_bytes != bytes || info.link_type != 1 || strncmp(info.ring_name, tap, strlen(tap))) printf("WRONG: info\n");
        count += (int)info.packets;
        wirecap_recycle(chunk);
    }
    return sum < 0 ? -1 : count;
}

static void chunks(void) {
    wirecap_worker *worker;
    wirecap_capture *capture = open_one(&worker);
    wirecap_chunk *chunk = NULL, *held = NULL;
    struct wirecap_packet packets[100];
    struct wirecap_chunk_info info;
    struct iovec pieces[2];
    uint32_t backlogs[2] = { 0, 4711 };
    check("one worker", wirecap_worker_count(capture) == 1 && worker);
    check("a worker that was taken", wirecap_worker_open(capture, 0) == NULL && wirecap_error_status() == WIRECAP_ERROR_BUSY);
    check("a worker that there is not", wirecap_worker_open(capture, 1) == NULL && says("there is no worker 1"));
    check("a ring that there is not", wirecap_ring_name(capture, 9) == NULL && says("there is no ring 9"));
    check("rings have names", wirecap_ring_count(capture) == 1 && strncmp(wirecap_ring_name(capture, 0), tap, strlen(tap)) == 0);
    check("no room for backlogs is none needed", wirecap_backlogs(capture, NULL, 0) == 1 && wirecap_backlogs(capture, NULL, 1) == WIRECAP_ERROR_ARGUMENT);
    check("nothing is there", wirecap_next(worker, 0, &chunk) == WIRECAP_NONE && !chunk);
    check("nothing comes", wirecap_next(worker, 1000000, &chunk) == WIRECAP_NONE);
    check("a wake-up before the wait", wirecap_worker_wake(worker) == 0 && wirecap_next(worker, WIRECAP_FOREVER, &chunk) == WIRECAP_NONE);
    check("no place for a chunk", wirecap_next(worker, 0, NULL) == WIRECAP_ERROR_ARGUMENT && says("chunk is null"));

    struct pollfd pollfd = { .fd = wirecap_worker_fd(worker), .events = POLLIN };
    wirecap_next(worker, 0, &chunk);
    check("the descriptor is quiet", pollfd.fd >= 0 && poll(&pollfd, 1, 0) == 0);
    emit(1);
    check("and readable", poll(&pollfd, 1, 5000) == 1);
    check("when there is a packet", take(worker, 1) == 1);

    emit(10);
    check("a chunk", wirecap_next(worker, 10000000000, &held) == WIRECAP_OK && held);
    check("is described", wirecap_chunk_describe(held, &info, sizeof info) == 0 && info.packets >= 1 && info.sequence >= 1 && !info.offloaded);
    check("nowhere", wirecap_chunk_describe(held, NULL, sizeof info) == WIRECAP_ERROR_ARGUMENT);
    check("packets need room", wirecap_chunk_packets(held, 0, NULL, sizeof *packets, 3) == WIRECAP_ERROR_ARGUMENT && wirecap_chunk_packets(held, 0, NULL, sizeof *packets, 0) == 0);
    check("there are none behind the last", wirecap_chunk_packets(held, info.packets, packets, sizeof *packets, 100) == 0
              && wirecap_chunk_packets(held, UINT32_MAX, packets, sizeof *packets, 100) == 0);
    check("all at once", wirecap_chunk_packets(held, 0, packets, sizeof *packets, 100) == (int)info.packets);
    check("in one piece", wirecap_chunk_pieces(held, 0, pieces, 2) == 1 && pieces[0].iov_len == 80 && pieces[0].iov_base == packets[0].data);
    check("pieces of nothing", wirecap_chunk_pieces(held, 4711, pieces, 2) == WIRECAP_ERROR_ARGUMENT && says("there is no packet 4711"));
    take(worker, 10 - (int)info.packets);

    check("a filter that there is not", wirecap_set_filter(capture, "tcp prot 80") == WIRECAP_ERROR_FILTER);
    check("another filter", wirecap_set_filter(capture, "arp") == 0);
    emit(5);
    check("matches nothing of that", wirecap_next(worker, 300000000, &chunk) == WIRECAP_NONE);
    check("and no filter", wirecap_set_filter(capture, "") == 0);
    emit(3);
    check("matches all", take(worker, 3) == 3);

    wirecap_ledger *ledger = wirecap_ledger_read(capture), *last = NULL;
    struct wirecap_account sum, ring;
    check("the ledger so far", wirecap_ledger_sum(ledger, &sum) == 0 && sum.delivered == 14 && sum.bytes == 14 * 80 && sum.dropped_other == 0);
    check("by rings", wirecap_ledger_ring_count(ledger) == 1 && wirecap_ledger_ring(ledger, 0, &ring) == 0 && ring.delivered == 14
              && ring.dropped_device == WIRECAP_NOT_REPORTED);
    check("and no others", wirecap_ledger_ring(ledger, 1, &ring) == WIRECAP_ERROR_ARGUMENT && wirecap_ledger_ring_name(ledger, 1) == NULL);
    check("it has a duration", wirecap_ledger_duration_ns(ledger) > 0);
    const char *json = wirecap_ledger_json(ledger);
    check("a ledger is text too", strstr(json, "\"delivered\":14") && json == wirecap_ledger_json(ledger) && strstr(wirecap_ledger_text(ledger), "lossless: "));
    check("and may have warnings", wirecap_ledger_warnings(ledger) != NULL);
    check("a ledger that was freed", wirecap_ledger_free(ledger) == 0 && wirecap_ledger_json(ledger) == NULL && says("the ledger is closed already"));

    emit(2);
    usleep(100000);
    check("backlogs", wirecap_backlogs(capture, backlogs, 2) == 1 && backlogs[0] > 0 && backlogs[1] == 4711);
    check("closing", wirecap_close(capture, &last) == 0);
    check("counts what was not taken", wirecap_ledger_sum(last, &sum) == 0 && sum.offered == 16 && sum.delivered == 14 && sum.dropped_other == 2);
    wirecap_ledger_free(last);
    check("a capture that was closed", wirecap_close(capture, &last) == WIRECAP_ERROR_HANDLE && !last && wirecap_stop(capture) == WIRECAP_ERROR_HANDLE);
    check("a worker after that", wirecap_next(worker, WIRECAP_FOREVER, &chunk) == WIRECAP_END);
    int bytes = 0;
    for (uint32_t byte = 0; byte < packets[0].caplen; byte++) bytes += packets[0].data[byte];
    check("a chunk after that", bytes > 0 && wirecap_chunk_describe(held, &info, sizeof info) == 0);
    check("recycled", wirecap_recycle(held) == 0);
    check("twice", wirecap_recycle(held) == WIRECAP_ERROR_HANDLE && says("the chunk is closed already"));
    check("a worker that was closed", wirecap_worker_close(worker) == 0 && wirecap_worker_close(worker) == WIRECAP_ERROR_HANDLE
              && wirecap_next(worker, 0, &chunk) == WIRECAP_ERROR_HANDLE);
}

static int waited;
static char waited_error[200];
static void *wait_for_one(void *worker) {
    wirecap_chunk *chunk;
    waited = wirecap_next(worker, WIRECAP_FOREVER, &chunk);
    snprintf(waited_error, sizeof waited_error, "%s", wirecap_error());
    return NULL;
}
static void *recycle(void *chunk) { return (void *)(intptr_t)wirecap_recycle(chunk); }

static pthread_t start(void *(*work)(void *), void *argument) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, argument);
    usleep(100000);
    return thread;
}

static void threads(void) {
    wirecap_worker *worker;
    wirecap_capture *capture = open_one(&worker);
    wirecap_chunk *chunk;
    void *status;
    pthread_t thread = start(wait_for_one, worker);
    check("a second thread", wirecap_next(worker, 0, &chunk) == WIRECAP_ERROR_BUSY && says("another thread")
              && wirecap_worker_fd(worker) == WIRECAP_ERROR_BUSY);
    check("errors are each thread's own", waited_error[0] == 0);
    wirecap_worker_wake(worker);
    pthread_join(thread, NULL);
    check("woken", waited == WIRECAP_NONE && waited_error[0] == 0);

    thread = start(wait_for_one, worker);
    pthread_cancel(thread);
    usleep(50000);
    wirecap_worker_wake(worker);
    pthread_join(thread, &status);
    check("a thread is not cancelled inside", waited == WIRECAP_NONE);
    check("and the worker goes on", (emit(1), take(worker, 1)) == 1);

    emit(1);
    wirecap_next(worker, 10000000000, &chunk);
    thread = start(recycle, chunk);
    pthread_join(thread, &status);
    check("recycled by another thread", (intptr_t)status == 0 && wirecap_recycle(chunk) == WIRECAP_ERROR_HANDLE);

    thread = start(wait_for_one, worker);
    check("stopped by another thread", wirecap_stop(capture) == 0 && wirecap_stop(capture) == 0);
    pthread_join(thread, NULL);
    check("ends the wait", waited == WIRECAP_END);
    check("filters of a stopped capture", wirecap_set_filter(capture, "ip") == WIRECAP_ERROR_FILTER && says("stopped"));
    wirecap_close(capture, NULL);
    wirecap_worker_close(worker);

    capture = open_one(&worker);
    thread = start(wait_for_one, worker);
    check("closed by another thread", wirecap_worker_close(worker) == 0);
    pthread_join(thread, NULL);
    check("ends the wait with an error", waited == WIRECAP_ERROR_HANDLE && strstr(waited_error, "closed by another thread"));
    wirecap_close(capture, NULL);

    capture = open_one(&worker);
    thread = start(wait_for_one, worker);
    check("the capture closed by another thread", wirecap_close(capture, NULL) == 0);
    pthread_join(thread, NULL);
    check("ends the wait too", waited == WIRECAP_END);
    wirecap_worker_close(worker);
}

/* Writes a savefile with this many packets. */
static void write_file(const char *path, uint32_t count) {
    FILE *file = fopen(path, "wb");
    uint32_t header[] = { 0xa1b23c4d, 0x00040002, 0, 0, 65535, 1 };
    fwrite(header, sizeof header, 1, file);
    for (uint32_t n = 0; n < count; n++) {
        uint32_t record[] = { 1700000000, n, 60, 100 };
        unsigned char frame[60] = "\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08";
        fwrite(record, sizeof record, 1, file);
        fwrite(frame, sizeof frame, 1, file);
    }
    fclose(file);
}

static void files(const char *path) {
    write_file(path, 1000);
    wirecap_group *group = wirecap_group_new();
    /* Compares the Ethernet type with IPv4, like the filter expression "ip". */
    struct { uint16_t code; uint8_t jt, jf; uint32_t k; } program[] = { { 0x28, 0, 0, 12 }, { 0x15, 0, 1, 0x800 }, { 6, 0, 0, 65535 }, { 6, 0, 0, 0 } };
    check("a file for a group", wirecap_group_set_file(group, path) == 0 && wirecap_group_set_snap_len(group, 20) == 0
              && wirecap_group_set_filter_program(group, (struct sock_filter *)program, 4) == 0);
    wirecap_capture *capture = wirecap_open(group);
    wirecap_worker *worker = wirecap_worker_open(capture, 0);
    wirecap_chunk *chunk, *held[16];
    struct wirecap_packet packet;
    int status, count = 0, chunks = 0;
    while ((status = wirecap_next(worker, WIRECAP_FOREVER, &chunk)) == WIRECAP_OK) {
        for (uint32_t n = 0; wirecap_chunk_packets(chunk, n, &packet, sizeof packet, 1) == 1; n++, count++)
            if (packet.caplen != 20 || packet.wire_len != 100 || packet.queue != WIRECAP_NO_QUEUE
                || packet.timestamp_ns != 1700000000000000000u + (unsigned)count || packet.data[12] != 8) printf("WRONG: packet %d\n", count);
        held[chunks++ % 16] = chunk;
    }
    check("the whole file", status == WIRECAP_END && count == 1000 && chunks == 4);
    check("again the end", wirecap_next(worker, 0, &chunk) == WIRECAP_END && !chunk);
    wirecap_ledger *ledger;
    struct wirecap_account sum;
    check("its ledger", wirecap_close(capture, &ledger) == 0 && wirecap_ledger_sum(ledger, &sum) == 0 && sum.delivered == 1000
              && sum.bytes == 100000 && sum.filtered == 0 && strstr(wirecap_ledger_json(ledger), "\"engine\":\"file\""));
    while (chunks > 0) check("recycled after that", wirecap_recycle(held[--chunks]) == 0);
    wirecap_worker_close(worker);
    wirecap_ledger_free(ledger);

    check("a file that is broken off", truncate(path, 24 + 10 * 76 + 20) == 0 && (capture = wirecap_open(group)));
    worker = wirecap_worker_open(capture, 0);
    check("gives what it has", wirecap_next(worker, 0, &chunk) == WIRECAP_OK && wirecap_recycle(chunk) == 0);
    check("and says what is wrong", wirecap_next(worker, 0, &chunk) == WIRECAP_ERROR_FILE && !chunk && says(path));
    wirecap_close(capture, NULL);
    wirecap_worker_close(worker);
    wirecap_group_free(group);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    check("the version", strcmp(wirecap_version(), WIRECAP_VERSION) == 0);
    check("nothing has failed", wirecap_error()[0] == 0 && wirecap_error_status() == WIRECAP_OK);
    no_handles();
    groups();
    files(argv[4]);
    chunks();
    threads();
    for (int n = 0; n < 5; n++) wirecap_close(open_one(NULL), NULL);
    check("opened and closed often", 1);
    return 0;
}
