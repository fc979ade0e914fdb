// A capture stopped by a signal handler; versions, statuses and interfaces reported by the library.
//
// signals DEVICE
#define _GNU_SOURCE
#include <net/if.h>
#include <netpacket/packet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <wirecap.h>

static volatile int stop_fd = -1;

static void on_alarm(int number) {
    (void)number;
    if (write(stop_fd, "twice", 2) != 2) _exit(9);
}

// The structures as a later version of the header may declare them.
struct later { struct wirecap_device device; uint64_t more; };
struct later_packet { struct wirecap_packet packet; uint64_t more; };
struct later_info { struct wirecap_chunk_info info; uint64_t more; };

// How often the interface was made promiscuous.
static int promiscuity(const char *device) {
    char command[128], line[4096];
    int count = -1;
    snprintf(command, sizeof command, "ip -d link show dev %s", device);
    FILE *said = popen(command, "r");
    while (fgets(line, sizeof line, said)) {
        char *word = strstr(line, "promiscuity ");
        if (word) count = atoi(word + 12);
    }
    pclose(said);
    return count;
}

static int is_untouched(const unsigned char *bytes) {
    for (int n = 0; n < 8; n++) if (bytes[n] != 0xff) return 0;
    return 1;
}

// A program of a later version gets what the library knows, and zeroes; one of an earlier version less.
static void describe(wirecap_chunk *chunk) {
    struct later_packet packets[2];
    struct later_info info;
    memset(packets, 0xff, sizeof packets);
    memset(&info, 0xff, sizeof info);
    int count = wirecap_chunk_packets(chunk, 0, &packets[0].packet, sizeof packets[0], 2);
    wirecap_chunk_describe(chunk, &info.info, sizeof info);
    printf("larger: %d, %d, %d\n", count >= 1 && packets[0].packet.caplen == 60 && !packets[0].more,
           count < 2 || (packets[1].packet.caplen == 60 && !packets[1].more), info.info.packets >= 1 && !info.more);
    struct wirecap_packet packet;
    struct wirecap_chunk_info part;
    memset(&packet, 0xff, sizeof packet);
    memset(&part, 0xff, sizeof part);
    count = wirecap_chunk_packets(chunk, 0, &packet, sizeof packet - 8, 1);
    int status = wirecap_chunk_describe(chunk, &part, sizeof part - 8);
    printf("smaller: %d, %d, %d\n", count == 1 && packet.caplen == 60, status == WIRECAP_OK && part.packets == info.info.packets,
           is_untouched((unsigned char *)(&packet + 1) - 8) && is_untouched((unsigned char *)(&part + 1) - 8));
}

// A capture that gets some packets, sent on its own interface.
static void capture_some(const char *device, int promiscuous) {
    unsigned char frame[60] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5};
    wirecap_group *group = wirecap_group_new();
    wirecap_group_add(group, device);
    wirecap_group_set_engine(group, WIRECAP_ENGINE_PACKET);
    wirecap_group_set_filter(group, "ether proto 0x88b5");
    if (promiscuous) wirecap_group_set_promiscuous(group, 1);
    wirecap_capture *capture = wirecap_open(group);
    if (!capture) { printf("%s\n", wirecap_error()); exit(1); }
    printf("promiscuous: %d\n", promiscuity(device));
    int sender = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(device)};
    bind(sender, (struct sockaddr *)&address, sizeof address);
    for (int n = 0; n < 3; n++) if (send(sender, frame, sizeof frame, 0) < 0) perror("send");
    wirecap_worker *worker = wirecap_worker_open(capture, 0);
    wirecap_chunk *chunk;
    if (wirecap_next(worker, 10000000000, &chunk) == WIRECAP_OK) {
        if (promiscuous) describe(chunk);
        wirecap_recycle(chunk);
    }
    wirecap_worker_close(worker);
    wirecap_close(capture, NULL);
    wirecap_group_free(group);
    close(sender);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    printf("version: %d, %d\n", wirecap_version_number() == WIRECAP_VERSION_NUMBER, WIRECAP_VERSION_NUMBER >= 1000);
    printf("status: %s; %s\n", wirecap_status_text(WIRECAP_ERROR_DEVICE), wirecap_status_text(77));

    struct later devices[16];
    memset(devices, 0xff, sizeof devices);
    int count = wirecap_devices(&devices[0].device, sizeof devices[0], 16), found = 0;
    for (int n = 0; n < count; n++) {
        if (strcmp(devices[n].device.name, argv[1]) || devices[n].more) continue;
        found = devices[n].device.mtu == 1500 && devices[n].device.flags & WIRECAP_DEVICE_UP && !strcmp(devices[n].device.driver, "veth");
    }
    printf("devices: %d, found: %d, none asked for: %d\n", count, found, wirecap_devices(NULL, sizeof devices[0], 0));
    printf("a size that cannot be: %d\n", wirecap_devices(&devices[0].device, 1, 16) == WIRECAP_ERROR_ARGUMENT);

    capture_some(argv[1], 0);
    capture_some(argv[1], 1);

    wirecap_group *group = wirecap_group_new();
    wirecap_group_add(group, argv[1]);
    wirecap_group_set_engine(group, WIRECAP_ENGINE_PACKET);
    wirecap_capture *capture = wirecap_open(group);
    if (!capture) { printf("%s\n", wirecap_error()); return 1; }
    stop_fd = wirecap_stop_fd(capture);
    printf("the same descriptor: %d\n", stop_fd >= 0 && wirecap_stop_fd(capture) == stop_fd);
    signal(SIGALRM, on_alarm);
    alarm(1);
    wirecap_worker *worker = wirecap_worker_open(capture, 0);
    wirecap_chunk *chunk;
    int status;
    while ((status = wirecap_next(worker, 10000000000, &chunk)) == WIRECAP_OK) wirecap_recycle(chunk);
    printf("next: %s\n", wirecap_status_text(status));
    wirecap_worker_close(worker);
    printf("close: %d\n", wirecap_close(capture, NULL));
    wirecap_group_free(group);
    return 0;
}
