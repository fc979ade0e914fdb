/*
 * handler: the WireCAP paper's multi_pkt_handler. A thread for each worker reads every packet x times and discards
 * it; on SIGINT or SIGTERM the capture ends and its ledger is printed.
 *
 *     cc -O2 handler.c -o handler $(pkg-config --cflags --libs wirecap) -lpthread
 *     sudo ./handler -T 0.6 -x 300 eth1
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

enum { BATCH = 64 };

static unsigned long looks = 1;

struct thread {
    pthread_t id;
    wirecap_worker *worker;
    uint64_t packets, bytes, chunks, offloaded;
    uint32_t seen;          /* the checksums of all packets */
    int status;
    char error[256];
};

/* Simulates an application's work on one packet. */
static uint32_t look_at(const struct wirecap_packet *packet) {
    uint32_t sum = 0;
    for (unsigned long round = 0; round < looks; round++)
        for (uint32_t byte = 0; byte < packet->caplen; byte++) sum = sum * 31 + packet->data[byte];
    return sum;
}

static void handle(struct thread *thread, wirecap_chunk *chunk) {
    struct wirecap_chunk_info info;
    wirecap_chunk_describe(chunk, &info, sizeof info);
    thread->chunks++;
    thread->offloaded += info.offloaded;
    struct wirecap_packet packets[BATCH];
    int count;
    for (uint32_t first = 0; (count = wirecap_chunk_packets(chunk, first, packets, sizeof *packets, BATCH)) > 0; first += count)
        for (int packet = 0; packet < count; packet++) {
            thread->packets++;
            thread->bytes += packets[packet].wire_len;
            thread->seen += look_at(&packets[packet]);
        }
}

static void *work(void *argument) {
    struct thread *thread = argument;
    wirecap_chunk *chunk;
    while ((thread->status = wirecap_next(thread->worker, WIRECAP_FOREVER, &chunk)) == WIRECAP_OK) {
        handle(thread, chunk);
        wirecap_recycle(chunk);
    }
    if (thread->status < 0) {
        /* wirecap_error() returns the last error of the calling thread, so it is called here. */
        snprintf(thread->error, sizeof thread->error, "%s", wirecap_error());
        kill(getpid(), SIGTERM);
    }
    return NULL;
}

static void check(int status) {
    if (status < 0) errx(1, "%s", wirecap_error());
}

static void usage(void) {
    errx(2, "usage: handler [-j] [-e auto|xdp|packet] [-M cells] [-R chunks] [-T threshold] [-w workers] [-x looks]\n"
            "               [-s snaplen] [-f filter] interface[@queues]...");
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

static void print(wirecap_ledger *ledger, const struct thread *threads, int count, int json) {
    if (json) {
        printf("%s\n", wirecap_ledger_json(ledger));
        return;
    }
    for (int worker = 0; worker < count; worker++)
        printf("worker %d: %" PRIu64 " packets, %" PRIu64 " bytes, %" PRIu64 " chunks, %" PRIu64 " of them offloaded\n", worker,
               threads[worker].packets, threads[worker].bytes, threads[worker].chunks, threads[worker].offloaded);
    struct wirecap_account sum;
    check(wirecap_ledger_sum(ledger, &sum));
    printf("offered %" PRIu64 ", delivered %" PRIu64 ", filtered ", sum.offered, sum.delivered);
    if (sum.filtered == WIRECAP_NOT_REPORTED) printf("not reported\n");
    else printf("%" PRIu64 "\n", sum.filtered);
    printf("%s\n", wirecap_ledger_text(ledger));
    fputs(wirecap_ledger_warnings(ledger), stderr);
}

int main(int argc, char **argv) {
    wirecap_group *group = wirecap_group_new();
    int json = 0;
    for (int option; (option = getopt(argc, argv, "je:M:R:T:w:x:s:f:")) != -1;)
        switch (option) {
        case 'j': json = 1; break;
        case 'e': set_engine(group, optarg); break;
        case 'M': check(wirecap_group_set_chunk(group, (uint32_t)atol(optarg))); break;
        case 'R': check(wirecap_group_set_pool(group, (uint32_t)atol(optarg))); break;
        case 'T': check(wirecap_group_set_advanced(group, atof(optarg))); break;
        case 'w': check(wirecap_group_set_workers(group, (uint32_t)atol(optarg))); break;
        case 'x': looks = strtoul(optarg, NULL, 10); break;
        case 's': check(wirecap_group_set_snap_len(group, (uint32_t)atol(optarg))); break;
        case 'f': check(wirecap_group_set_filter(group, optarg)); break;
        default: usage();
        }
    if (optind == argc) usage();
    while (optind < argc) check(wirecap_group_add(group, argv[optind++]));

    /* A signal handler must not call the library, so this thread waits for signals, which are blocked in the others. */
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
        threads[worker].worker = wirecap_worker_open(capture, (uint32_t)worker);
        if (pthread_create(&threads[worker].id, NULL, work, &threads[worker]) != 0) errx(1, "cannot start a thread");
    }
    fprintf(stderr, "capturing from %d rings with %d workers\n", wirecap_ring_count(capture), count);

    int signal;
    sigwait(&ends, &signal);
    check(wirecap_stop(capture));
    int failed = 0;
    for (int worker = 0; worker < count; worker++) {
        pthread_join(threads[worker].id, NULL);
        if (threads[worker].status < 0) {
            warnx("worker %d: %s", worker, threads[worker].error);
            failed = 1;
        }
    }
    wirecap_ledger *ledger;
    check(wirecap_close(capture, &ledger));
    for (int worker = 0; worker < count; worker++) wirecap_worker_close(threads[worker].worker);
    print(ledger, threads, count, json);
    wirecap_ledger_free(ledger);
    free(threads);
    return failed;
}
