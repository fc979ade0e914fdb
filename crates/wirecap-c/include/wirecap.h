/*
 * wirecap.h - packet capture for programs in C, with a ledger of delivered and dropped packets
 *
 * Every receive queue of a network interface has a pool of R chunks of M packet buffers (cells). With AF_XDP a burst of
 * R x M packets that fit a cell is kept even if the program reads nothing; a longer frame takes several cells. With a
 * zero-copy driver the device writes into the cells; with any other driver the kernel copies each packet into its cell.
 * A worker takes filled cells as a chunk, by moving their metadata, and returns them by recycling the chunk. The rings
 * that one program reads are a buddy group: in advanced mode workers take chunks from any ring whose backlog exceeds
 * the threshold T, and packets of one flow may then be processed out of order. A ledger counts offered, delivered and
 * dropped packets, with reasons; drops that a driver does not report are shown as not reported.
 *
 *     wirecap_group *group = wirecap_group_new();
 *     wirecap_group_add(group, "eth0");                   // all rings of eth0 are buddies
 *     wirecap_group_set_advanced(group, 0.6);             // T
 *     wirecap_capture *capture = wirecap_open(group);
 *     if (!capture) errx(1, "%s", wirecap_error());
 *     // in each thread, with a different number below wirecap_worker_count(capture):
 *     wirecap_worker *worker = wirecap_worker_open(capture, number);
 *     wirecap_chunk *chunk;
 *     while (wirecap_next(worker, WIRECAP_FOREVER, &chunk) == WIRECAP_OK) {
 *         struct wirecap_packet packets[64];
 *         for (int first = 0, n; (n = wirecap_chunk_packets(chunk, first, packets, sizeof *packets, 64)) > 0; first += n)
 *             ;                                           // packets[0] to packets[n - 1]
 *         wirecap_recycle(chunk);
 *     }
 *
 * Rules that hold for all functions:
 *
 * - Handles (wirecap_group *, wirecap_capture * ...) are integers, not addresses. A null, closed or wrong-type handle
 *   returns WIRECAP_ERROR_HANDLE; so does closing a handle twice.
 * - A function that returns an int returns a status, or a number if documented; values below 0 are errors. A
 *   function that returns a handle or a string returns null on error. wirecap_error() describes the error.
 * - All functions are thread-safe; none is async-signal-safe. To stop a capture, a signal handler writes to
 *   wirecap_stop_fd(capture). Threads are not cancelled inside the library.
 * - Times are in nanoseconds, lengths in bytes; indices start at 0. Strings are UTF-8.
 * - Interfaces are those of the network namespace of the calling thread.
 * - A function uses the pointers that it is passed only during the call.
 * - Structures that may grow are passed with their size (sizeof), so that programs and libraries of different
 *   versions work together; others have reserved members. The SONAME is libwirecap.so.0 for versions 0.x: a new minor
 *   version may change the ABI, and programs must be recompiled; a new patch version does not. From 1.0 on functions and
 *   members are added, but not changed or removed.
 *
 * Link with -lwirecap, or use pkg-config wirecap. wirecap(3) has a complete program.
 */
#ifndef WIRECAP_H
#define WIRECAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header: as a string, as numbers, and as one number to compare. */
#define WIRECAP_VERSION "0.1.0"
#define WIRECAP_VERSION_MAJOR 0
#define WIRECAP_VERSION_MINOR 1
#define WIRECAP_VERSION_PATCH 0
#define WIRECAP_VERSION_NUMBER (WIRECAP_VERSION_MAJOR * 1000000 + WIRECAP_VERSION_MINOR * 1000 + WIRECAP_VERSION_PATCH)

/* A number that is not counted, or a time that was not read. Never 0. */
#define WIRECAP_NOT_REPORTED UINT64_MAX
/* A receive queue that is not known. */
#define WIRECAP_NO_QUEUE UINT32_MAX
/* No timeout. */
#define WIRECAP_FOREVER INT64_C(-1)

/* What functions return. */
enum wirecap_status {
    WIRECAP_OK = 0,                   /* success; wirecap_next: a chunk was returned */
    WIRECAP_END = 1,                  /* the capture was stopped, and all earlier packets were delivered */
    WIRECAP_NONE = 2,                 /* timeout, or the worker was woken; or no free cell to send */
    WIRECAP_ERROR_HANDLE = -1,        /* the handle is null, closed, or of another type */
    WIRECAP_ERROR_ARGUMENT = -2,      /* null pointer, or invalid name or number */
    WIRECAP_ERROR_BUSY = -3,          /* in use by another process or thread */
    WIRECAP_ERROR_DEVICE = -4,        /* no such interface or queue, or it is down or was removed */
    WIRECAP_ERROR_PERMISSION = -5,    /* requires root or capabilities */
    WIRECAP_ERROR_MEMORY = -6,        /* the pools exceed the memory or the limit on locked memory */
    WIRECAP_ERROR_FILTER = -7,        /* invalid filter, or it does not apply to these packets */
    WIRECAP_ERROR_UNSUPPORTED = -8,   /* not supported by this interface or engine */
    WIRECAP_ERROR_FILE = -9,          /* the savefile cannot be read */
    WIRECAP_ERROR_ORPHANED = -10,     /* basic mode: the worker of a ring was closed */
    WIRECAP_ERROR_SYSTEM = -11,       /* a system call failed unexpectedly */
    WIRECAP_ERROR_INTERNAL = -12      /* a bug in wirecap */
};

/* The library's version: "0.1.0". A static string. */
const char *wirecap_version(void);

/* The same as one number, comparable with WIRECAP_VERSION_NUMBER. */
int wirecap_version_number(void);

/* A short description of a status. A static string. */
const char *wirecap_status_text(int status);

/*
 * Describes the last error of this thread: the fault, the object, and what to do. Empty if no call has failed.
 * Valid until the thread's next error, or its end.
 */
const char *wirecap_error(void);

/* The status of the last error of this thread, or WIRECAP_OK. For functions that return null. */
int wirecap_error_status(void);


/* ---- Interfaces ---- */

/* Flags of struct wirecap_device. */
#define WIRECAP_DEVICE_UP 1U          /* administratively up */
#define WIRECAP_DEVICE_RUNNING 2U     /* link up */
#define WIRECAP_DEVICE_LOOPBACK 4U    /* loopback interface */
#define WIRECAP_DEVICE_XDP 8U         /* the driver supports XDP programs */

/* An interface. */
struct wirecap_device {
    const char *name;         /* "eth0"; valid, like driver, until the process ends */
    const char *driver;       /* "ixgbe"; empty if unknown */
    uint32_t index;           /* the kernel's interface index */
    uint32_t flags;           /* WIRECAP_DEVICE_ */
    uint32_t mtu;             /* MTU in bytes */
    uint32_t rx_queues;       /* receive queues in use */
    uint32_t tx_queues;       /* transmit queues in use */
    uint32_t link_type;       /* link type, as in struct wirecap_chunk_info */
};

/*
 * Lists the interfaces in the network namespace of the calling thread: fills in up to `count` elements of `devices`;
 * `size` is sizeof *devices. Returns the number of interfaces. Errors: ARGUMENT, SYSTEM.
 */
int wirecap_devices(struct wirecap_device *devices, size_t size, size_t count);


/*
 * ---- Buddy groups: what to capture, and how ----
 *
 * Setters return WIRECAP_OK, HANDLE, or ARGUMENT (null string, or unknown enumeration value). wirecap_open checks names
 * and numbers. The last call of a setter applies. Strings and lists are copied.
 */

/* The rings that the program reads, and their settings. */
typedef struct wirecap_group wirecap_group;

/* Creates a group without rings, in basic mode, with the defaults below. The caller frees it. */
wirecap_group *wirecap_group_new(void);

/* Frees a group. Captures opened from it continue. */
int wirecap_group_free(wirecap_group *group);

/*
 * Adds buddies to the group: all receive rings of an interface ("eth0"), or some of them ("eth0@2", "eth0@0-3",
 * "eth0@0,2"). May be called repeatedly, for one interface or several. wirecap_open checks that they exist.
 */
int wirecap_group_add(wirecap_group *group, const char *rings);

/*
 * As wirecap_group_add, with a filter for this interface (unless `filter` is null) and a snap length (unless `snap_len`
 * is 0) that override the group's. All rings of one interface must use the same values.
 */
int wirecap_group_add_with(wirecap_group *group, const char *rings, const char *filter, uint32_t snap_len);

/*
 * Reads a savefile instead of interfaces, as if its packets were being captured: pcapng or pcap, plain or
 * compressed with gzip or Zstandard. It has one ring, which ends with the file.
 */
int wirecap_group_set_file(wirecap_group *group, const char *path);

/* Capture engines. */
enum wirecap_engine {
    WIRECAP_ENGINE_AUTO = 0,     /* xdp on an interface that `wirecap dedicate` has marked, else packet; the default */
    WIRECAP_ENGINE_XDP = 1,      /* AF_XDP: the host does not get captured packets; received packets only */
    WIRECAP_ENGINE_PACKET = 2    /* AF_PACKET: captures copies; the host gets all packets */
};

/* Selects the engine. */
int wirecap_group_set_engine(wirecap_group *group, enum wirecap_engine engine);

/*
 * Engine xdp: capture (on != 0) even if the host uses the interface; the host loses these packets. Default 0.
 */
int wirecap_group_set_take(wirecap_group *group, int on);

/* M: cells per chunk, the maximum number of packets per chunk; 1 to 65,536. Default 256. */
int wirecap_group_set_chunk(wirecap_group *group, uint32_t cells);

/*
 * R: chunks per pool. Every ring buffers R x M packets, even if the program does not read. Default: by link speed, up
 * to 512. All pools together take 64 MiB up to 1 Gbit/s and on virtual interfaces without a link (veth, tun), 256 MiB up
 * to 10 Gbit/s and if the driver reports no speed, 1 GiB at 100 Gbit/s, and at most an eighth of the memory of the
 * machine or of the memory cgroup.
 */
int wirecap_group_set_pool(wirecap_group *group, uint32_t chunks);

/*
 * Sets R by the memory of all rings together, unless wirecap_group_set_pool was called.
 */
int wirecap_group_set_buffer(wirecap_group *group, uint64_t bytes);

/* Basic mode, B-(M,R): each worker reads its own rings. The default. */
int wirecap_group_set_basic(wirecap_group *group);

/*
 * Advanced mode, A-(M,R,T): workers also take chunks from buddies whose backlog exceeds the threshold T, a
 * share of the pool from 0 to 1 (with the engine packet, of three quarters of the pool); 0.6 is a good start.
 * Two workers may then process packets of one flow at the same time.
 */
int wirecap_group_set_advanced(wirecap_group *group, double threshold);

/*
 * Advanced mode: buddies take over the rings of a worker that has not requested a chunk for this long. Default 1 s.
 */
int wirecap_group_set_stuck_after(wirecap_group *group, uint64_t away_ns);

/*
 * Number of workers, 1 to 1,024. Default: one per ring. With more workers than receive queues, each queue gets
 * several rings, selected by a hash of the flow that is the same for both directions.
 */
int wirecap_group_set_workers(wirecap_group *group, uint32_t count);

/*
 * Engine xdp: keep this many cells posted to the kernel per ring, and add more as the backlog grows. Faster with large
 * pools. A ring then keeps `cells` packets at any rate, and R x M packets if at most `cells` packets arrive between
 * two checks of a library thread. Default: all cells are posted, without a thread.
 */
int wirecap_group_set_warm(wirecap_group *group, uint32_t cells);

/*
 * Engine xdp: reserve a quarter of R x M for each ring, and share the rest between rings. Off by default.
 */
int wirecap_group_set_elastic(wirecap_group *group);

/*
 * The filter, in tcpdump's language (pcap-filter(7)); an empty expression matches all packets. It is applied
 * to packets as they were on the wire, VLAN tags in place. wirecap_open compiles it, by the system's libpcap.
 */
int wirecap_group_set_filter(wirecap_group *group, const char *expression);

/*
 * The same with a classic BPF program of `count` instructions, as pcap_compile(3PCAP) generates it for the
 * interface's link type. Its struct bpf_insn has the layout of struct sock_filter in <linux/filter.h>.
 */
struct sock_filter;
int wirecap_group_set_filter_program(wirecap_group *group, const struct sock_filter *insns, size_t count);

/* Engine xdp: drop non-matching packets (on != 0) instead of passing them to the host. Default 0. */
int wirecap_group_set_drop_rejected(wirecap_group *group, int on);

/*
 * Snap length: maximum bytes per packet, unless wirecap_group_add_with sets another. Default 262,144.
 */
int wirecap_group_set_snap_len(wirecap_group *group, uint32_t bytes);

/*
 * Source of timestamps. HARDWARE is the raw NIC clock, which may not be UTC; wirecap_open returns UNSUPPORTED if the
 * driver does not provide it to XDP programs or does not timestamp every packet. Such a capture does not share its
 * interface.
 */
enum wirecap_timestamps {
    WIRECAP_TIMESTAMPS_NONE = 0,       /* none, which costs nothing; the default */
    WIRECAP_TIMESTAMPS_BATCH = 1,      /* clock read for every eighth packet of a batch, and used for the seven after it */
    WIRECAP_TIMESTAMPS_PACKET = 2,     /* clock read for every packet */
    WIRECAP_TIMESTAMPS_HARDWARE = 3    /* raw NIC clock of every packet; engine xdp */
};

/* Selects the timestamps in struct wirecap_packet. */
int wirecap_group_set_timestamps(wirecap_group *group, enum wirecap_timestamps which);

/* Promiscuous mode (on != 0). Default 0, as in libpcap. */
int wirecap_group_set_promiscuous(wirecap_group *group, int on);

/* Direction of captured packets. */
enum wirecap_direction {
    WIRECAP_DIRECTION_IN = 0,       /* received; the default, except engine packet on a whole interface */
    WIRECAP_DIRECTION_OUT = 1,      /* sent */
    WIRECAP_DIRECTION_INOUT = 2     /* both; the default of engine packet on a whole interface */
};

/* Selects the direction. Only engine packet on a whole interface sees sent packets. */
int wirecap_group_set_direction(wirecap_group *group, enum wirecap_direction direction);

/*
 * Engine packet: maximum time that a packet waits for its block to fill; at least 1 ms. Default 20 ms.
 */
int wirecap_group_set_retire_after(wirecap_group *group, uint64_t longest_ns);

/*
 * Makes the rings of each interface a separate buddy group with its own workers. Off by default: all rings of the
 * capture are one group.
 */
int wirecap_group_set_per_interface(wirecap_group *group);

/*
 * Makes the interfaces ports as well: captured packets can be sent on them without being copied (wirecap_forward).
 * All rings then share one memory area. Cannot be combined with wirecap_group_set_elastic, a snap length, or more
 * workers than receive queues. With the engine packet only received packets are captured, sending copies them, and
 * the host, which also receives them, must not forward them.
 */
int wirecap_group_set_forwarding(wirecap_group *group);

/* The same, and adds a port: an interface that only sends. */
int wirecap_group_add_port(wirecap_group *group, const char *interface);

/* Number of cells for packets of wirecap_send and for packets that must be copied. Default 1,024. */
int wirecap_group_set_new_packets(wirecap_group *group, uint32_t cells);

/*
 * Advanced mode: sends packets as soon as a worker hands them over. Without this, the packets of each ring are sent in
 * order: packets of a chunk wait, at most for the order wait, until all earlier chunks were forwarded or recycled.
 */
int wirecap_group_set_unordered(wirecap_group *group);

/* Sets the order wait. Default 10 ms. */
int wirecap_group_set_order_wait(wirecap_group *group, uint64_t longest_ns);

/* Pins worker k to the k-th of these CPUs, modulo `count`. No CPUs: workers are not pinned. */
int wirecap_group_set_pin(wirecap_group *group, const uint32_t *cpus, size_t count);

/* Pins each worker near the CPU that serves its ring's interrupt, if it is known. */
int wirecap_group_set_pin_auto(wirecap_group *group);


/* ---- Captures ---- */

/* A running capture. */
typedef struct wirecap_capture wirecap_capture;

/*
 * Opens a capture on the group's rings. Packets are captured from now on, even before a worker requests a chunk. The
 * group may be changed and opened again. An error leaves everything unchanged.
 *
 * Errors: ARGUMENT (empty group, invalid M, R, T ...), DEVICE, BUSY (another capture has a queue), PERMISSION,
 * MEMORY, FILTER, UNSUPPORTED (the host uses the interface; the engine lacks an option), FILE, SYSTEM.
 */
wirecap_capture *wirecap_open(wirecap_group *group);

/*
 * Stops a capture: later packets go to the host. Earlier packets are still delivered; then wirecap_next returns
 * WIRECAP_END to every worker. Takes some milliseconds. A second call has no effect.
 */
int wirecap_stop(wirecap_capture *capture);

/*
 * A file descriptor for signal handlers: write(2) any byte to it, and a thread of the library stops the capture as
 * wirecap_stop does. It belongs to the capture: do not close or read it. It has no effect in a child process after
 * fork(2).
 */
int wirecap_stop_fd(wirecap_capture *capture);

struct wirecap_ledger;

/*
 * Stops and closes a capture. Packets that no worker has taken count as dropped ("other"). Outstanding chunks stay
 * valid, and workers get WIRECAP_END. Unless `ledger` is null, *ledger is set to the final ledger, which the caller
 * frees, or to null on error.
 */
int wirecap_close(wirecap_capture *capture, struct wirecap_ledger **ledger);

/*
 * Replaces the filter; an empty expression matches all packets. Packets that match both filters are neither lost nor
 * delivered twice. Takes some milliseconds.
 *
 * Errors: FILTER (invalid filter, or the capture was stopped), PERMISSION. An error leaves the filter unchanged,
 * unless the kernel rejects it on an interface other than the first.
 */
int wirecap_set_filter(wirecap_capture *capture, const char *expression);

/* Number of rings. */
int wirecap_ring_count(wirecap_capture *capture);

/* The name of a ring: "eth0@2". Valid until the process ends. */
const char *wirecap_ring_name(wirecap_capture *capture, uint32_t ring);

/*
 * Fills in backlogs[0] to backlogs[count - 1] with the number of packets that wait in each ring. Returns the number of
 * rings.
 */
int wirecap_backlogs(wirecap_capture *capture, uint32_t *backlogs, size_t count);

/* Number of workers, opened or not. */
int wirecap_worker_count(wirecap_capture *capture);


/* ---- Workers: a thread's side of a capture ---- */

/* One thread's handle on a capture. */
typedef struct wirecap_worker wirecap_worker;

/*
 * Opens the worker of this number, below wirecap_worker_count. Each can be opened once. If the group pins workers, the
 * first call of wirecap_next pins its thread. Errors: BUSY (already opened).
 */
wirecap_worker *wirecap_worker_open(wirecap_capture *capture, uint32_t index);

/*
 * Closes a worker; a thread that waits in wirecap_next gets WIRECAP_ERROR_HANDLE. While the capture runs, the worker's
 * rings go to its buddies; in basic mode the other workers get WIRECAP_ERROR_ORPHANED. Its outstanding chunks stay
 * valid.
 */
int wirecap_worker_close(wirecap_worker *worker);

/* Up to M captured packets of one ring. */
typedef struct wirecap_chunk wirecap_chunk;

/*
 * Waits up to `timeout_ns` for the next chunk: 0 does not wait, WIRECAP_FOREVER waits without limit.
 *
 * Returns WIRECAP_OK: *chunk is a chunk that the caller recycles. WIRECAP_END: the capture has ended. WIRECAP_NONE:
 * timeout, or wirecap_worker_wake was called. Except for WIRECAP_OK, *chunk is null.
 *
 * Errors: DEVICE (the interface was removed), ORPHANED, FILE (the savefile is truncated), SYSTEM, each after earlier
 * packets were delivered; BUSY: another thread is using this worker.
 */
int wirecap_next(wirecap_worker *worker, int64_t timeout_ns, wirecap_chunk **chunk);

/*
 * A file descriptor for poll(2), select(2) or epoll(7), readable when wirecap_next may find packets. Poll it after
 * wirecap_next with timeout 0 returned WIRECAP_NONE; in advanced mode with a timeout of some 20 ms, because a stuck
 * buddy cannot wake this worker. It belongs to the worker: do not close, read or write it.
 */
int wirecap_worker_fd(wirecap_worker *worker);

/*
 * Makes wirecap_next return WIRECAP_NONE: the current call if the worker is waiting, otherwise its next wait.
 */
int wirecap_worker_wake(wirecap_worker *worker);


/* ---- Chunks and packets ---- */

/* Properties of a chunk. */
struct wirecap_chunk_info {
    const char *ring_name;    /* "eth0@2"; valid until the process ends */
    uint32_t ring_index;      /* index of the ring in its capture */
    uint32_t interface_index; /* index of the interface in the group: the first one added is 0 */
    uint32_t packets;         /* number of packets; at least 1 */
    uint32_t link_type;       /* link type, as in savefiles (DLT_, LINKTYPE_); 1 is Ethernet */
    uint64_t sequence;        /* number of earlier chunks of this ring */
    uint64_t wire_bytes;      /* bytes of all its packets on the wire */
    uint32_t offloaded;       /* 1 if it was captured by a worker other than the ring's own, else 0 */
    uint32_t reserved;        /* 0 */
};

/* A packet. */
struct wirecap_packet {
    const uint8_t *data;      /* from the link-layer header on; valid until the chunk is recycled */
    uint32_t caplen;          /* bytes at data: all, or the snap length */
    uint32_t wire_len;        /* length on the wire */
    uint64_t timestamp_ns;    /* arrival, since 1970 in UTC, or raw NIC clock; or WIRECAP_NOT_REPORTED */
    uint32_t queue;           /* receive queue, or WIRECAP_NO_QUEUE */
    uint32_t reserved;        /* 0 */
};

/* Describes a chunk; `size` is sizeof *info. Errors: ARGUMENT (`info` is null, or invalid size). */
int wirecap_chunk_describe(wirecap_chunk *chunk, struct wirecap_chunk_info *info, size_t size);

/*
 * Fills in up to `count` packets of a chunk from index `first` on, in order of arrival; `size` is sizeof *packets.
 * Returns their number, 0 after the last packet. A packet of several cells is copied into one piece (some 0.1 ns per
 * byte, once); all other data is where the kernel wrote it.
 */
int wirecap_chunk_packets(wirecap_chunk *chunk, uint32_t first, struct wirecap_packet *packets, size_t size, size_t count);

/*
 * Fills in up to `count` pieces of one packet, without copying: one, or several for a jumbo frame. Returns the number
 * of pieces. They are read-only.
 */
int wirecap_chunk_pieces(wirecap_chunk *chunk, uint32_t packet, struct iovec *pieces, size_t count);

/*
 * Recycles a chunk: its cells are free again, and its packets' data must no longer be read. Any thread may call this,
 * in any order, even after the worker and the capture were closed. It never waits. (With the engine packet the kernel
 * reuses blocks in order, so a chunk that is held long delays its ring.)
 */
int wirecap_recycle(wirecap_chunk *chunk);


/* ---- Ports: forwarding without copying ---- */

/*
 * One thread's handle on an interface of the group that sends packets (wirecap_group_set_forwarding).
 */
typedef struct wirecap_port wirecap_port;

/* Special values of a transmit queue. */
#define WIRECAP_TX_AS_RECEIVED INT64_C(-1)    /* the number of the receive queue: preserves the order of rings */
#define WIRECAP_TX_BY_FLOW INT64_C(-2)        /* by a hash of the flow: preserves the order of flows */

/* The number of interfaces that send, and their names, valid until the process ends. */
int wirecap_port_count(wirecap_capture *capture);
const char *wirecap_port_name(wirecap_capture *capture, uint32_t port);

/*
 * Opens a handle on an interface that sends on transmit queue `tx_queue`, a number or a special value. Each thread
 * opens its own handle. Errors: ARGUMENT (the capture does not send on that interface, or it has no such queue).
 */
wirecap_port *wirecap_port_open(wirecap_capture *capture, const char *interface, int64_t tx_queue);

/*
 * Closes a handle after handing its waiting packets to the kernel. Close handles before the capture: packets sent
 * later are recycled, and no ledger counts them.
 */
int wirecap_port_close(wirecap_port *port);

/* A captured packet to be sent, valid during the call of wirecap_route. */
struct wirecap_frame {
    uint8_t *data;            /* its bytes, writable; of a jumbo frame those of the first piece */
    uint32_t data_len;        /* bytes at data */
    uint32_t len;             /* bytes of the packet: the same, except for jumbo frames */
    uint64_t timestamp_ns;    /* arrival, or WIRECAP_NOT_REPORTED */
    void *packet;             /* internal */
};

/*
 * Callback that routes a packet: returns the port that sends it, or null to recycle it. It may call any function of
 * the library, but the ports that it has returned for this chunk are busy. It must return normally: no exception, no
 * longjmp, no pthread_exit.
 */
typedef wirecap_port *(*wirecap_route)(struct wirecap_frame *frame, void *user);

/*
 * Calls `route` for each packet of a chunk, in order, and sends the packets for which it returns a port, without
 * copying: the cells return when the kernel has sent them. Afterwards all packets have been handed to the kernel, and
 * the chunk is invalid, as after wirecap_recycle. Returns the number of packets handed to ports. A port counts packets
 * that it cannot send.
 *
 * Errors: HANDLE, BUSY: `route` returned an invalid port, or one in use by another thread; these packets were
 * recycled, the others sent. HANDLE also for an invalid chunk, and ARGUMENT if `route` is null; then no packet was
 * sent.
 */
int wirecap_forward(wirecap_chunk *chunk, wirecap_route route, void *user);

/*
 * Lengthen or shorten a frame at its head or tail. Added bytes are uninitialised: write them. frame->data and the
 * lengths change. Errors: ARGUMENT (the cell has no room, or the piece has fewer bytes); the frame is then unchanged.
 * Before a packet, a cell has room for 256 bytes with the engine xdp and for some 60 with the engine packet. With the
 * engine packet it has no room after the packet.
 */
int wirecap_frame_grow_head(struct wirecap_frame *frame, uint32_t bytes);
int wirecap_frame_shrink_head(struct wirecap_frame *frame, uint32_t bytes);
int wirecap_frame_grow_tail(struct wirecap_frame *frame, uint32_t bytes);
int wirecap_frame_shrink_tail(struct wirecap_frame *frame, uint32_t bytes);

/* Returned by wirecap_frame_pop_vlan for a frame without a VLAN tag. */
#define WIRECAP_NO_TAG 0x10000

/*
 * Push a VLAN tag (802.1Q) after the MAC addresses, before existing tags; pop the outermost tag. `tci` is priority,
 * drop eligibility and VLAN ID as on the wire, in the host's byte order; pop returns it.
 */
int wirecap_frame_push_vlan(struct wirecap_frame *frame, uint16_t tci);
int wirecap_frame_pop_vlan(struct wirecap_frame *frame);

/* Fills in up to `count` pieces of a jumbo frame, which are writable. Returns the number of pieces. */
int wirecap_frame_pieces(struct wirecap_frame *frame, struct iovec *pieces, size_t count);

/*
 * Sends a packet that the program has made, starting with the link-layer header, by copying it into a free cell. It is
 * sent with the next wirecap_port_flush, or when M packets wait. Returns WIRECAP_NONE, without sending, if no cell for
 * new packets is free.
 *
 * Errors: ARGUMENT (longer than a cell), UNSUPPORTED (engine packet), BUSY (the port is in use).
 */
int wirecap_send(wirecap_port *port, const void *data, size_t len);

/* Hands waiting packets to the kernel, as wirecap_forward does by itself. */
int wirecap_port_flush(wirecap_port *port);

/* The account of all handles on an interface: taken = sent + dropped + waiting. */
struct wirecap_port_account {
    uint64_t taken;                 /* packets handed over and flushed */
    uint64_t sent;                  /* packets that the kernel accepted; it does not report their transmission */
    uint64_t bytes;                 /* bytes of the packets sent; with the engine xdp including rejected packets */
    uint64_t dropped_ring_full;     /* the tx ring had no room: the device did not keep up */
    uint64_t dropped_refused;       /* the device, or its peer, had no room, or there was no carrier */
    uint64_t dropped_down;          /* the interface was down or removed */
    uint64_t dropped_bad_length;    /* longer than the interface permits, or shorter than an Ethernet header */
    uint64_t dropped_no_cell;       /* had to be copied, and no cell for new packets was free */
    uint64_t dropped_other;         /* on the tx ring when the capture was closed */
    uint64_t waiting;               /* on the tx ring, or waiting for earlier chunks */
    uint64_t copied;                /* packets that had to be copied */
    uint64_t late;                  /* sent out of their ring's order, because an earlier chunk took too long */
    uint64_t reserved[4];           /* 0 */
};

/* The account so far. */
int wirecap_port_account(wirecap_port *port, struct wirecap_port_account *account);

/*
 * A hash of the flow of an Ethernet frame, the same for both directions. (uint64_t)hash * n >> 32 is a number from 0
 * to n - 1. Returns 0 if `frame` is null.
 */
uint32_t wirecap_flow_hash(const void *frame, size_t len);


/* ---- Ledgers: the account of every packet ---- */

/* The account of a capture at one moment. */
typedef struct wirecap_ledger wirecap_ledger;

/* The numbers of one ring, or of all together. offered = delivered + everything dropped. */
struct wirecap_account {
    uint64_t seen;                 /* packets that reached the capture, before the filter; or WIRECAP_NOT_REPORTED */
    uint64_t offered;              /* seen - filtered = delivered + dropped */
    uint64_t delivered;            /* packets handed out in chunks */
    uint64_t bytes;                /* bytes of the delivered packets on the wire */
    uint64_t filtered;             /* non-matching packets; or WIRECAP_NOT_REPORTED */
    uint64_t dropped_no_cell;      /* every cell of the pool was in use */
    uint64_t dropped_ring_full;    /* the ring had no room */
    uint64_t dropped_device;       /* lost in the device; NOT_REPORTED for single rings, and by some drivers */
    uint64_t dropped_other;        /* in the ring when the capture was closed, invalid descriptors, dropped_no_ring */
    uint64_t offloaded_chunks;     /* chunks captured by a worker other than the ring's own */
    uint64_t abandoned_chunks;     /* of those, taken because the ring's worker was stuck or gone */
    uint64_t super_packets;        /* packets longer than the MTU: the host merged segments */
    uint64_t stalls;               /* engine packet: times that the kernel waited for a block that was held */
    uint64_t dropped_no_ring;      /* of dropped_other: their receive queue was added and had no ring yet */
    uint64_t cut;                  /* zero-copy: delivered packets that the device cut into several */
    uint64_t starved;              /* zero-copy: times that the driver found no cell; its losses are not known */
    uint64_t reserved[8];          /* 0 */
};

/* The ledger so far. Rings are read one after the other, while packets may arrive. The caller frees it. */
wirecap_ledger *wirecap_ledger_read(wirecap_capture *capture);

/* Frees a ledger and its texts. */
int wirecap_ledger_free(wirecap_ledger *ledger);

/* The sums over all rings, and the numbers that exist per interface only. */
int wirecap_ledger_sum(wirecap_ledger *ledger, struct wirecap_account *account);

/* The numbers of one ring. */
int wirecap_ledger_ring(wirecap_ledger *ledger, uint32_t ring, struct wirecap_account *account);

/* Number of rings. */
int wirecap_ledger_ring_count(wirecap_ledger *ledger);

/* The name of a ring. Valid until the process ends. */
const char *wirecap_ledger_ring_name(wirecap_ledger *ledger, uint32_t ring);

/* The same for the ports of a capture that forwards. */
int wirecap_ledger_port_count(wirecap_ledger *ledger);
const char *wirecap_ledger_port_name(wirecap_ledger *ledger, uint32_t port);
int wirecap_ledger_port(wirecap_ledger *ledger, uint32_t port, struct wirecap_port_account *account);

/* Time from opening the capture to this ledger or the stop, whichever came first; values below 0 are a status. */
int64_t wirecap_ledger_duration_ns(wirecap_ledger *ledger);

/* Whether a packet was lost. More values may be added: treat those as NOT_KNOWN. */
enum wirecap_answer {
    WIRECAP_LOSSLESS_YES = 0,       /* no packet was lost */
    WIRECAP_LOSSLESS_UNTIL = 1,     /* none until the last one came; an interface was quiet or dead since then */
    WIRECAP_LOSSLESS_NOT_KNOWN = 2, /* no loss was counted, but packets may have been lost */
    WIRECAP_LOSSLESS_NO = 3         /* packets were lost */
};

/* The verdict of a ledger. */
struct wirecap_verdict {
    uint32_t answer;               /* enum wirecap_answer */
    uint32_t unseen;               /* number of unseen periods */
    uint64_t lost;                 /* lost packets that were counted, for all reasons */
    uint64_t until_ns;             /* UNTIL: when the last packet came, nanoseconds since 1970; otherwise 0 */
};

/* The verdict of a ledger; `size` is sizeof *verdict. Errors: ARGUMENT (`verdict` is null, or invalid size). */
int wirecap_ledger_verdict(wirecap_ledger *ledger, struct wirecap_verdict *verdict, size_t size);

/* The verdict with its reasons, the last line of wirecap_ledger_text. Valid until the ledger is freed. */
const char *wirecap_ledger_verdict_text(wirecap_ledger *ledger);

/* A period in which packets of an interface may have passed without being captured or counted. */
struct wirecap_unseen {
    const char *interface;         /* valid until the process ends, like the reason */
    const char *reason;            /* "it was down" */
    uint64_t from_ns;              /* nanoseconds since 1970 */
    uint64_t to_ns;                /* or WIRECAP_NOT_REPORTED: until the end, or it lasts */
};

/*
 * Fills in up to `count` unseen periods of a ledger; `size` is sizeof *unseen. Returns their number. Errors: ARGUMENT.
 */
int wirecap_ledger_unseen(wirecap_ledger *ledger, struct wirecap_unseen *unseen, size_t size, size_t count);

/*
 * The ledger as text: one JSON object, as "wirecap capture --json" prints it, with null for numbers that are not
 * reported; a table with the verdict in its last line; the warnings, one per line. Valid until the ledger is freed.
 */
const char *wirecap_ledger_json(wirecap_ledger *ledger);
const char *wirecap_ledger_text(wirecap_ledger *ledger);
const char *wirecap_ledger_warnings(wirecap_ledger *ledger);

#ifdef __cplusplus
}
#endif

#endif
