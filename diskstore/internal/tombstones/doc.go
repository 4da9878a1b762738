/*
Package tombstones is the list of pages that left a tier: which, when, and why. It works on bytes; the
tier keeps them in a file of at most BytesMax.

The list explains, and tells how often a page was used that is stored again, and nothing else. So it is not
kept like pages are. A record that is lost costs an explanation, and the page counts as new: of two processes
that write the list at the same moment, one loses its change, and adds it again with its next one. A record
that is wrong would be a wrong explanation: each has a checksum, and half of the page's key.

A list is records of 32 bytes, the oldest first:

	 0  key     16 bytes: the beginning of the page's key
	16  when     6 bytes: milliseconds since 1970, big endian
	22  reason   1 byte
	23  uses     1 byte: the number of the page's uses
	24  idle     4 bytes: seconds since its last use, big endian
	28  check    4 bytes: CRC-32C of the bytes before, big endian

A key is a hash: the list has no text.
*/
package tombstones
