// A program that uses gopacket.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/pcap"
)

func main() {
	handle, err := pcap.OpenLive("a1", 200, true, 100*time.Millisecond)
	if err == nil {
		err = handle.SetBPFFilter("udp port 5000")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	count := 0
	for packet := range gopacket.NewPacketSource(handle, handle.LinkType()).Packets() {
		fmt.Printf("%d %x\n", packet.Metadata().Length, packet.Data())
		if count++; count == 10 {
			break
		}
	}
	stats, err := handle.Stats()
	fmt.Println(stats.PacketsReceived, stats.PacketsDropped, err)
	handle.Close()
}
