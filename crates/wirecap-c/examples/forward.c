/*
 * forward: a middlebox between two interfaces, in both directions, without copying packets. It drops UDP packets to one
 * port, and can set a new destination Ethernet address in the others. On SIGINT or SIGTERM it ends and prints its counts.
 *
 *     cc -O2 forward.c -o forward $(pkg-config --cflags --libs wirecap) -lpthread
 *     sudo ./forward -d 53 eth1 eth2
 */
#include <err.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wirecap.h>

static const char *interfaces[2];
static int dropped_port = -1;
static uint8_t new_mac[6];
static int has_new_mac;

struct thread {
    pthread_t id;
    wirecap_worker *worker;
    wirecap_port *out[2];       /* the output port for each interface */
    uint64_t refused;
    int status;
    char error[256];
};

/* The arguments of route() for the packets of one chunk. */
struct way {
    struct thread *thread;
    wirecap_port *out;
};

/* Whether it is a UDP packet over IPv4 to the port to drop (not a later fragment). */
static int is_unwanted(const struct wirecap_frame *frame) {
    const uint8_t *data = frame->data;
    if (dropped_port < 0 || frame->data_len < 14 + 20) return 0;
    if (data[12] != 0x08 || data[13] != 0x00 || data[23] != 17) return 0;
    uint32_t header = 14 + (data[14] & 15) * 4u;
    int is_later_fragment = (data[20] & 0x1f) != 0 || data[21] != 0;
    return !is_later_fragment && frame->data_len >= header + 4
        && (data[header + 2] << 8 | data[header + 3]) == dropped_port;
}

static wirecap_port *route(struct wirecap_frame *frame, void *user) {
    struct way *way = user;
    if (is_unwanted(frame)) {
        way->thread->refused++;
        return NULL;
    }
    if (has_new_mac && frame->data_len >= 14) memcpy(frame->data, new_mac, 6);
    return way->out;
}

static void *work(void *argument) {
    struct thread *thread = argument;
    wirecap_chunk *chunk;
    while ((thread->status = wirecap_next(thread->worker, WIRECAP_FOREVER, &chunk)) == WIRECAP_OK) {
        struct wirecap_chunk_info info;
        wirecap_chunk_describe(chunk, &info, sizeof info);
        struct way way = { thread, thread->out[info.interface_index] };
        if ((thread->status = wirecap_forward(chunk, route, &way)) < 0) break;
    }
    if (thread->status < 0) {
        snprintf(thread->error, sizeof thread->error, "%s", wirecap_error());
        kill(getpid(), SIGTERM);
    }
    wirecap_port_close(thread->out[0]);
    wirecap_port_close(thread->out[1]);
    return NULL;
}

static void check(int status) {
    if (status < 0) errx(1, "%s", wirecap_error());
}

static void usage(void) {
    errx(2, "usage: forward [-e auto|xdp|packet] [-M cells] [-R chunks] [-T threshold] [-d udp-port-to-drop]\n"
            "               [-m new-mac] interface interface");
}

static void set_engine(wirecap_group *group, const char *name) {
    static const char *const names[] = { "auto", "xdp", "packet" };
    for (int engine = WIRECAP_ENGINE_AUTO; engine <= WIRECAP_ENGINE_PACKET; engine++)
        if (strcmp(name, names[engine]) == 0) {
            check(wirecap_group_set_engine(group, (enum wirecap_engine)engine));
            return;
        }
    usage();
}

static void set_mac(const char *text) {
    unsigned byte[6];
    if (sscanf(text, "%x:%x:%x:%x:%x:%x", byte, byte + 1, byte + 2, byte + 3, byte + 4, byte + 5) != 6) usage();
    for (int n = 0; n < 6; n++) new_mac[n] = (uint8_t)byte[n];
    has_new_mac = 1;
}

static void print_port(wirecap_ledger *ledger, uint32_t port) {
    struct wirecap_port_account account;
    check(wirecap_ledger_port(ledger, port, &account));
    printf("%s: taken %" PRIu64 " sent %" PRIu64 " ring full %" PRIu64 " refused %" PRIu64 " down %" PRIu64
           " bad length %" PRIu64 " no cell %" PRIu64 " other %" PRIu64 " waiting %" PRIu64 " late %" PRIu64 "\n",
           wirecap_ledger_port_name(ledger, port), account.taken, account.sent, account.dropped_ring_full,
           account.dropped_refused, account.dropped_down, account.dropped_bad_length, account.dropped_no_cell,
           account.dropped_other, account.waiting, account.late);
}

int main(int argc, char **argv) {
    wirecap_group *group = wirecap_group_new();
    for (int option; (option = getopt(argc, argv, "e:M:R:T:d:m:")) != -1;)
        switch (option) {
        case 'e': set_engine(group, optarg); break;
        case 'M': check(wirecap_group_set_chunk(group, (uint32_t)atol(optarg))); break;
        case 'R': check(wirecap_group_set_pool(group, (uint32_t)atol(optarg))); break;
        case 'T': check(wirecap_group_set_advanced(group, atof(optarg))); break;
        case 'd': dropped_port = atoi(optarg); break;
        case 'm': set_mac(optarg); break;
        default: usage();
        }
    if (argc - optind != 2) usage();
    for (int side = 0; side < 2; side++) check(wirecap_group_add(group, interfaces[side] = argv[optind + side]));
    check(wirecap_group_set_forwarding(group));
    check(wirecap_group_set_per_interface(group));

    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);

    wirecap_capture *capture = wirecap_open(group);
    if (!capture) errx(1, "%s", wirecap_error());
    wirecap_group_free(group);
    int count = wirecap_worker_count(capture);
    struct thread *threads = calloc((size_t)count, sizeof *threads);
    if (!threads) err(1, NULL);
    for (int worker = 0; worker < count; worker++) {
        struct thread *thread = &threads[worker];
        thread->worker = wirecap_worker_open(capture, (uint32_t)worker);
        for (int side = 0; side < 2; side++)
            if (!(thread->out[side] = wirecap_port_open(capture, interfaces[!side], WIRECAP_TX_AS_RECEIVED)))
                errx(1, "%s", wirecap_error());
        if (pthread_create(&thread->id, NULL, work, thread) != 0) errx(1, "cannot start a thread");
    }
    fprintf(stderr, "forwarding between %s and %s with %d workers\n", interfaces[0], interfaces[1], count);

    int signal;
    sigwait(&ends, &signal);
    check(wirecap_stop(capture));
    int failed = 0;
    uint64_t refused = 0;
    for (int worker = 0; worker < count; worker++) {
        pthread_join(threads[worker].id, NULL);
        refused += threads[worker].refused;
        if (threads[worker].status < 0) {
            warnx("worker %d: %s", worker, threads[worker].error);
            failed = 1;
        }
    }
    wirecap_ledger *ledger;
    check(wirecap_close(capture, &ledger));
    for (int worker = 0; worker < count; worker++) wirecap_worker_close(threads[worker].worker);
    struct wirecap_account sum;
    check(wirecap_ledger_sum(ledger, &sum));
    printf("offered %" PRIu64 ", delivered %" PRIu64 ", unwanted %" PRIu64 "\n", sum.offered, sum.delivered, refused);
    for (int port = 0; port < wirecap_ledger_port_count(ledger); port++) print_port(ledger, (uint32_t)port);
    printf("%s\n", wirecap_ledger_text(ledger));
    fputs(wirecap_ledger_warnings(ledger), stderr);
    wirecap_ledger_free(ledger);
    free(threads);
    return failed;
}
