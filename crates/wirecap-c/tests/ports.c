// Uses ports correctly and incorrectly. Prints one line for each check that passed.
//
// ports TAP PEER ENGINE FOLDER
#include <poll.h>

#include "common/check.h"

static wirecap_capture *capture;
static wirecap_worker *worker;
static wirecap_port *port, *closed;

static wirecap_chunk *next(void) {
    wirecap_chunk *chunk = NULL;
    emit(1);
    check("a packet", wirecap_next(worker, 10000000000, &chunk) == WIRECAP_OK);
    return chunk;
}

// Receives a packet from the wire. Returns its length, or 0 after a second.
static int back(unsigned char *frame, int bytes) {
    struct pollfd pollfd = { .fd = wire, .events = POLLIN };
    for (;;) {
        if (poll(&pollfd, 1, 1000) != 1) return 0;
        struct sockaddr_ll from;
        socklen_t length = sizeof from;
        int got = (int)recvfrom(wire, frame, (size_t)bytes, 0, (struct sockaddr *)&from, &length);
        if (from.sll_pkttype != PACKET_OUTGOING) return got;
    }
}

static void no_handles(void) {
    struct wirecap_port_account account;
    struct iovec piece;
    const int handle = WIRECAP_ERROR_HANDLE, argument = WIRECAP_ERROR_ARGUMENT;
    check("no port", wirecap_port_close(NULL) == handle && wirecap_port_flush(NULL) == handle && says("the port is null")
              && wirecap_port_account(NULL, &account) == handle && wirecap_send(NULL, "x", 1) == handle);
    check("no capture", wirecap_port_open(NULL, tap, 0) == NULL && wirecap_port_count(NULL) == handle && wirecap_port_name(NULL, 0) == NULL);
    check("no ledger", wirecap_ledger_port_count(NULL) == handle && wirecap_ledger_port_name(NULL, 0) == NULL
              && wirecap_ledger_port(NULL, 0, &account) == handle);
    check("no group", wirecap_group_set_forwarding(NULL) == handle && wirecap_group_add_port(NULL, tap) == handle
              && wirecap_group_set_new_packets(NULL, 1) == handle && wirecap_group_set_unordered(NULL) == handle
              && wirecap_group_set_order_wait(NULL, 1) == handle && wirecap_group_set_per_interface(NULL) == handle);
    check("no frame", wirecap_frame_grow_head(NULL, 1) == argument && wirecap_frame_shrink_head(NULL, 1) == argument
              && wirecap_frame_grow_tail(NULL, 1) == argument && wirecap_frame_shrink_tail(NULL, 1) == argument
              && wirecap_frame_push_vlan(NULL, 1) == argument && wirecap_frame_pop_vlan(NULL) == argument
              && wirecap_frame_pieces(NULL, &piece, 1) == argument && says("frame is null"));
    check("no bytes", wirecap_flow_hash(NULL, 60) == 0 && wirecap_flow_hash(NULL, 0) == 0);
    unsigned char there[34] = "......------\x08\0\x45......\0\0\xfd\0\0\1\2\3\4\5\6\7\x08", again[34];
    memcpy(again, there, 34);
    memcpy(again + 26, there + 30, 4);
    memcpy(again + 30, there + 26, 4);
    check("flows have two directions", wirecap_flow_hash(there, 34) == wirecap_flow_hash(again, 34) && wirecap_flow_hash(there, 34) != 0);
}

static wirecap_port *nowhere(struct wirecap_frame *frame, void *user) { (void)frame; return *(wirecap_port **)user; }

static wirecap_port *misuse(struct wirecap_frame *frame, void *user) {
    wirecap_chunk **chunk = user;
    struct iovec piece;
    check("a chunk that is being forwarded", wirecap_forward(*chunk, misuse, user) == WIRECAP_ERROR_HANDLE && wirecap_recycle(*chunk) == WIRECAP_ERROR_HANDLE);
    check("too much", wirecap_frame_grow_head(frame, 100000) == WIRECAP_ERROR_ARGUMENT && says("100000")
              && wirecap_frame_shrink_tail(frame, 81) == WIRECAP_ERROR_ARGUMENT && wirecap_frame_shrink_head(frame, 81) == WIRECAP_ERROR_ARGUMENT
              && frame->len == 80 && frame->data_len == 80);
    check("its piece", wirecap_frame_pieces(frame, &piece, 1) == 1 && piece.iov_base == frame->data && piece.iov_len == 80
              && wirecap_frame_pieces(frame, NULL, 0) == 1 && wirecap_frame_pieces(frame, NULL, 1) == WIRECAP_ERROR_ARGUMENT);
    check("no tag", wirecap_frame_pop_vlan(frame) == WIRECAP_NO_TAG);
    check("a tag", wirecap_frame_push_vlan(frame, 0x6123) == 0 && frame->len == 84 && frame->data[12] == 0x81 && frame->data[15] == 0x23);
    check("and none", wirecap_frame_pop_vlan(frame) == 0x6123 && frame->len == 80 && frame->data[12] == 8);
    check("shorter", wirecap_frame_shrink_tail(frame, 10) == 0 && wirecap_frame_shrink_head(frame, 2) == 0 && frame->len == 68 && frame->data[10] == 8);
    check("longer", wirecap_frame_grow_head(frame, 2) == 0 && frame->len == 70 && frame->data[12] == 8);
    frame->data[0] = 0x42;
    frame->data[69] = 0x43;
    return port;
}

static wirecap_port *close_it(struct wirecap_frame *frame, void *user) {
    (void)frame;
    int *calls = user;
    if (++*calls == 2) check("closed on the way", wirecap_port_close(closed) == 0);
    return closed;
}

static wirecap_port *meanwhile(struct wirecap_frame *frame, void *user) {
    (void)frame;
    struct wirecap_port_account account;
    int *calls = user;
    if (++*calls == 2)
        check("a port in use", wirecap_port_flush(port) == WIRECAP_ERROR_BUSY && says("in use")
                  && wirecap_port_account(port, &account) == WIRECAP_ERROR_BUSY && wirecap_send(port, "x", 1) == WIRECAP_ERROR_BUSY);
    return port;
}

// Returns a chunk with at least two packets.
static wirecap_chunk *several(void) {
    struct wirecap_chunk_info info = { 0 };
    wirecap_chunk *chunk = NULL;
    for (int tries = 0; tries < 50 && info.packets < 2; tries++) {
        if (chunk) wirecap_recycle(chunk);
        emit(8);
        usleep(100000);
        wirecap_next(worker, 10000000000, &chunk);
        wirecap_chunk_describe(chunk, &info, sizeof info);
    }
    check("several packets", info.packets >= 2);
    return chunk;
}

static void drain(void) {
    wirecap_chunk *chunk;
    while (wirecap_next(worker, 200000000, &chunk) == WIRECAP_OK) wirecap_recycle(chunk);
    unsigned char frame[100];
    while (back(frame, 100) > 0) continue;
}

int main(int argc, char **argv) {
    begin(argc, argv);
    no_handles();
    wirecap_group *group = wirecap_group_new();
    wirecap_group_add(group, tap);
    wirecap_group_set_engine(group, engine);
    wirecap_group_set_chunk(group, 16);
    wirecap_group_set_pool(group, 16);
    capture = wirecap_open(group);
    check("a capture that does not forward", capture && wirecap_port_count(capture) == 0 && wirecap_port_open(capture, tap, 0) == NULL
              && says("not opened for forwarding"));
    wirecap_close(capture, NULL);
    check("not with a snap length", wirecap_group_set_forwarding(group) == 0 && wirecap_group_set_snap_len(group, 96) == 0
              && wirecap_open(group) == NULL && wirecap_error_status() == WIRECAP_ERROR_UNSUPPORTED);
    wirecap_group_set_snap_len(group, 262144);
    capture = wirecap_open(group);
    if (!capture) { printf("WRONG: %s\n", wirecap_error()); return 1; }
    wirecap_group_free(group);
    worker = wirecap_worker_open(capture, 0);
    check("one port", wirecap_port_count(capture) == 1 && strcmp(wirecap_port_name(capture, 0), tap) == 0 && wirecap_port_name(capture, 1) == NULL);
    check("no such port", wirecap_port_open(capture, "nowhere0", 0) == NULL && says("nowhere0") && wirecap_port_open(capture, NULL, 0) == NULL
              && wirecap_port_open(capture, tap, 77) == NULL && wirecap_port_open(capture, tap, -3) == NULL && says("no transmit queue -3"));
    port = wirecap_port_open(capture, tap, WIRECAP_TX_AS_RECEIVED);
    closed = wirecap_port_open(capture, tap, WIRECAP_TX_BY_FLOW);
    check("ports", port && closed);

    wirecap_port *none = NULL;
    wirecap_chunk *chunk = next();
    check("no route", wirecap_forward(chunk, NULL, NULL) == WIRECAP_ERROR_ARGUMENT && says("route is null"));
    check("nowhere", wirecap_forward(chunk, nowhere, &none) == 0);
    check("twice", wirecap_forward(chunk, nowhere, &none) == WIRECAP_ERROR_HANDLE);
    none = (wirecap_port *)capture;
    check("to what is no port", wirecap_forward(next(), nowhere, &none) == WIRECAP_ERROR_HANDLE && says("the port is closed"));
    drain();
    chunk = next();
    check("changed and sent", wirecap_forward(chunk, misuse, &chunk) == 1);
    unsigned char frame[100];
    check("it comes back", back(frame, 100) == 70 && frame[0] == 0x42 && frame[12] == 8 && frame[69] == 0x43);
    int calls = 0;
    check("closed meanwhile", wirecap_forward(several(), close_it, &calls) >= 2 && wirecap_port_close(closed) == WIRECAP_ERROR_HANDLE);
    calls = 0;
    check("used meanwhile", wirecap_forward(several(), meanwhile, &calls) >= 2 && wirecap_port_flush(port) == 0);

    drain();
    memset(frame, 0x17, 64);
    int status = wirecap_send(port, frame, 64);
    if (engine == WIRECAP_ENGINE_XDP) {
        check("a packet of the program's own", status == 0 && wirecap_port_flush(port) == 0 && back(frame, 100) == 64 && frame[63] == 0x17);
        static char huge[100000];
        check("that is too long", wirecap_send(port, huge, sizeof huge) == WIRECAP_ERROR_ARGUMENT
                  && wirecap_send(port, huge, SIZE_MAX) == WIRECAP_ERROR_ARGUMENT && wirecap_send(port, NULL, 60) == WIRECAP_ERROR_ARGUMENT);
    } else {
        check("no packet of the program's own", status == WIRECAP_ERROR_UNSUPPORTED && says("xdp"));
    }
    struct wirecap_port_account account, last;
    check("an account", wirecap_port_account(port, &account) == 0 && wirecap_port_account(port, NULL) == WIRECAP_ERROR_ARGUMENT);
    chunk = next();
    check("ports are closed", wirecap_port_close(port) == 0 && wirecap_port_close(port) == WIRECAP_ERROR_HANDLE);
    wirecap_ledger *ledger;
    check("and captures", wirecap_close(capture, &ledger) == 0 && wirecap_forward(chunk, nowhere, &port) == WIRECAP_ERROR_HANDLE);
    check("the ledger", wirecap_ledger_port_count(ledger) == 1 && strcmp(wirecap_ledger_port_name(ledger, 0), tap) == 0
              && wirecap_ledger_port(ledger, 0, &last) == 0 && wirecap_ledger_port(ledger, 1, &last) == WIRECAP_ERROR_ARGUMENT
              && wirecap_ledger_port_name(ledger, 1) == NULL);
    check("has what was sent", last.taken == account.taken && last.taken >= 5 && last.waiting == 0
              && last.taken == last.sent + last.dropped_ring_full + last.dropped_refused + last.dropped_down + last.dropped_bad_length
                     + last.dropped_no_cell + last.dropped_other);
    wirecap_ledger_free(ledger);
    wirecap_worker_close(worker);
    return 0;
}
