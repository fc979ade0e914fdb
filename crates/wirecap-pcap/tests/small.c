// Small things that programs notice. Run with two libraries it says the same twice.
//
// small TAP PEER ODD: ODD is an interface with an @ and a number in its name.
#include <pcap/pcap.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char pcap_version[];

static char errbuf[PCAP_ERRBUF_SIZE];

static void header_after_nothing(const char *tap) {
    struct pcap_pkthdr *header = NULL;
    const unsigned char *data = NULL;
    pcap_t *p = pcap_open_live(tap, 100, 1, 10, errbuf);
    pcap_setnonblock(p, 1, errbuf);
    printf("next_ex: %d", pcap_next_ex(p, &header, &data));
    printf(", header %s, data %s\n", header ? "there" : "null", data ? "there" : "null");
    pcap_close(p);
}

// More than a slow interface takes in: what does not fit is refused and not waited for.
static void inject_without_waiting(const char *tap) {
    static unsigned char frame[1400] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5};
    pcap_t *p = pcap_open_live(tap, 100, 1, 10, errbuf);
    pcap_setnonblock(p, 1, errbuf);
    int sent = 0, refused = 0;
    alarm(10);
    for (int n = 0; n < 2000 && !refused; n++) {
        int status = pcap_inject(p, frame, sizeof frame);
        if (status == sizeof frame) sent++;
        else { refused++; printf("inject: %d %s\n", status, pcap_geterr(p)); }
    }
    alarm(0);
    printf("some were sent: %d, one was refused: %d\n", sent > 10, refused);
    pcap_close(p);
}

static void odd_name(const char *odd) {
    pcap_t *p = pcap_create(odd, errbuf);
    int status = pcap_activate(p);
    printf("activate %s: %d %s, link type %d\n", odd, status, status < 0 ? pcap_geterr(p) : "", pcap_datalink(p));
    pcap_close(p);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    header_after_nothing(argv[1]);
    odd_name(argv[3]);
    printf("version %s is in %s: %d\n", pcap_version, pcap_lib_version(), strstr(pcap_lib_version(), pcap_version) != NULL);
    inject_without_waiting(argv[1]);
    return 0;
}
