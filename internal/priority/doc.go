// Package priority lowers the priority of a thread, so that other threads get processors
// and disks first.
package priority
