/*
Package pagefile reads and writes the bytes of one page file.

A page holds the K/V rows of consecutive tokens, for all layers. Its Key is a hash of the
parent's key and of its own tokens; see ChainKey. Its Name says where a store keeps it:
the fingerprint, the class, the key. A Layout places the sections of a page, one for each
kind of rows of each layer, in one buffer.

Encode-side: Encode turns a Page into a file, compressed section by section where that
makes a section smaller. Decode-side: ReadHeader, then ReadPayload for some sections or all
of them. A Checker checks a whole file in little memory and keeps nothing; Stream does the
same for a file that is copied. All of them take a Source, which may be a file on a disk, on
a network, or inside an archive.

Every byte of a file is checked before its rows are given out: ErrDamaged reports bytes that
are not those that were written, ErrMismatch a good page that is not the one asked for.

format.go has the format. The package opens no file and decides nothing about I/O.
*/
package pagefile
