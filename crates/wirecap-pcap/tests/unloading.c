// Loads libpcap, captures and unloads libpcap again, many times, while packets arrive.
//
// unloading CAPTURED SENT ROUNDS: prints the number of rounds, the number of rounds with a different library
// than in the first, and the number of the library's threads that were left after handles were closed.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <pcap/pcap.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *captured;
static void *library;
static char path[4096];
static int others, threads_left;
static atomic_int over;

static void *flood(void *device) {
    int sender = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(device)};
    unsigned char frame[60];
    memset(frame, 0xff, sizeof frame);
    while (!over) sendto(sender, frame, sizeof frame, 0, (struct sockaddr *)&to, sizeof to);
    close(sender);
    return NULL;
}

static int threads(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void *function(const char *name) {
    void *address = dlsym(library, name);
    if (!address) exit(3);
    return address;
}

static void count(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)header, (void)data;
    ++*(int *)user;
}

static void *capture(void *none) {
    (void)none;
    char errbuf[PCAP_ERRBUF_SIZE];
    int packets = 0;
    pcap_t *(*create)(const char *, char *) = function("pcap_create");
    int (*set_timeout)(pcap_t *, int) = function("pcap_set_timeout");
    int (*set_buffer_size)(pcap_t *, int) = function("pcap_set_buffer_size");
    int (*activate)(pcap_t *) = function("pcap_activate");
    int (*dispatch)(pcap_t *, int, pcap_handler, unsigned char *) = function("pcap_dispatch");
    void (*end)(pcap_t *) = function("pcap_close");
    Dl_info found;
    if (!dladdr(function("pcap_create"), &found)) exit(8);
    if (!*path) snprintf(path, sizeof path, "%s", found.dli_fname);
    others += strcmp(path, found.dli_fname) != 0;
    // main, sender and this thread; the reader before, although joined, may still be in /proc.
    int before = 3;
    pcap_t *p = create(captured, errbuf);
    if (!p) exit(4);
    set_timeout(p, 10);
    set_buffer_size(p, 2 << 20);
    if (activate(p) < 0) exit(5);
    while (!packets)
        if (dispatch(p, 1, count, (unsigned char *)&packets) < 0) exit(6);
    end(p);
    threads_left += threads() - before;
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t sender, reader;
    if (argc < 4) return 2;
    captured = argv[1];
    int rounds = atoi(argv[3]);
    pthread_create(&sender, NULL, flood, argv[2]);
    for (int n = 0; n < rounds; n++) {
        library = dlopen("libpcap.so.0.8", RTLD_NOW);
        if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
        pthread_create(&reader, NULL, capture, NULL);
        pthread_join(reader, NULL);
        dlclose(library);
    }
    over = 1;
    pthread_join(sender, NULL);
    printf("rounds %d, others %d, threads left %d\n", rounds, others, threads_left);
    return 0;
}
