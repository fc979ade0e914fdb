// One thread closes handles while another reads from them: each handle is freed once, by the thread that
// finishes last.
//
// closing TAP ROUNDS
#include <dirent.h>
#include <pcap/pcap.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_long reads;
static atomic_int blocking;

static void none(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) { (void)user; (void)header; (void)data; }

static void *read_until_closed(void *argument) {
    pcap_t *p = argument;
    while (blocking ? pcap_loop(p, -1, none, NULL) >= 0 : pcap_dispatch(p, -1, none, NULL) >= 0) reads++;
    reads++;
    return NULL;
}

static int descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    if (argc < 3) return 2;
    alarm(150);
    int before = 0, rounds = atoi(argv[2]);
    for (int round = 0; round < rounds; round++) {
        pcap_t *p = pcap_open_live(argv[1], 96, 0, 10, errbuf);
        if (!p) { printf("%s\n", errbuf); return 1; }
        blocking = round % 8 == 0;
        if (!blocking) pcap_setnonblock(p, 1, errbuf);
        long first = reads;
        pthread_t reader;
        pthread_create(&reader, NULL, read_until_closed, p);
        while (!blocking && reads == first) { }
        for (volatile int n = 0; n < rand() % 3000; n++) { }
        pcap_close(p);
        pthread_join(reader, NULL);
        if (round == 0) before = descriptors();
    }
    int left = descriptors() - before;
    printf("%d rounds, %d descriptors are left over\n", rounds, left);
    return left != 0;
}
