package sealed

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// A sealed file is a header and chunks:
//
//	magic  8 bytes, with the version
//	key id 8 bytes
//	salt  32 bytes, random
//	chunk  AES-256-GCM of 64 KiB of the content, and its tag of 16 bytes
//	…
//	chunk  the last one: of 1 byte to 64 KiB, or of none in an empty file
//
// The key of a file is HKDF-SHA-256(content secret, salt, name). The nonce of a chunk is its number, 8 bytes
// big endian, three zeros, and 1 for the last chunk or 0. The header is authenticated with each chunk.
const (
	magic       = pagefile.SealedMagic
	idBytes     = 8
	saltBytes   = 32
	headerBytes = len(magic) + idBytes + saltBytes
	chunkBytes  = 64 << 10
	tagBytes    = 16
	sealedChunk = chunkBytes + tagBytes

	// damagedBytes is the Info.Bytes of a file whose length is that of no sealed file. No page is as short.
	damagedBytes = 1
)

// sealedLen returns the length of a sealed file of n bytes.
func sealedLen(n int64) int64 {
	return int64(headerBytes) + n + tagBytes*max(1, (n+chunkBytes-1)/chunkBytes)
}

// plainLen is the inverse of sealedLen; false where no sealed file is as long.
func plainLen(sealed int64) (int64, bool) {
	body := sealed - int64(headerBytes)
	n := body - tagBytes*((body+sealedChunk-1)/sealedChunk)
	return n, n >= 0 && sealedLen(n) == sealed
}

// plainBytes is the Info.Bytes of a sealed file.
func plainBytes(sealed int64) int64 {
	if n, ok := plainLen(sealed); ok {
		return n
	}
	return damagedBytes
}

// sealer seals and opens the chunks of one file.
type sealer struct {
	header [headerBytes]byte
	aead   cipher.AEAD
}

// newSealer returns the sealer of a new file. name is what the file is bound to.
func (k *key) newSealer(name string) *sealer {
	header := k.begin()
	var salt [saltBytes]byte
	rand.Read(salt[:])
	return k.sealer([headerBytes]byte(append(header, salt[:]...)), name)
}

// begin is the part of a header that is the same in all files of a key.
func (k *key) begin() []byte { return append([]byte(magic), k.id[:]...) }

// sealer returns that of a file with a header.
func (k *key) sealer(header [headerBytes]byte, name string) *sealer {
	block, err := aes.NewCipher(derive(k.content, header[headerBytes-saltBytes:], name, keyBytes))
	if err != nil {
		panic(err) // the key has a wrong size
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // the block has a wrong size
	}
	return &sealer{header: header, aead: aead}
}

func nonce(number int64, last bool) []byte {
	var n [12]byte
	binary.BigEndian.PutUint64(n[:], uint64(number))
	if last {
		n[11] = 1
	}
	return n[:]
}

// seal appends a sealed chunk to out.
func (s *sealer) seal(out []byte, number int64, last bool, plain []byte) []byte {
	return s.aead.Seal(out, nonce(number, last), plain, s.header[:])
}

// open opens a chunk in its place.
func (s *sealer) open(number int64, last bool, chunk []byte) ([]byte, error) {
	plain, err := s.aead.Open(chunk[:0], nonce(number, last), chunk, s.header[:])
	if err != nil {
		return nil, pagefile.Damaged("open sealed chunk %d", number)
	}
	return plain, nil
}

// fileName is what a page, tail or manifest is bound to.
func fileName(n pagefile.Name) string {
	return "kvtier file" + string(n.Fingerprint[:]) + string([]byte{byte(n.Class)}) + string(n.Key[:])
}

// ledgerName is what a ledger is bound to.
const ledgerName = "kvtier ledger"

// sealLedger seals the content of a ledger.
func (k *key) sealLedger(content []byte) []byte {
	s := k.newSealer(ledgerName)
	out := s.header[:]
	for number := int64(0); ; number++ {
		n := min(len(content), chunkBytes)
		out = s.seal(out, number, n == len(content), content[:n])
		if content = content[n:]; len(content) == 0 {
			return out
		}
	}
}

// openLedger returns the content of a ledger that this key has sealed, nil of a damaged one.
func (k *key) openLedger(ledger []byte) []byte {
	if _, ok := plainLen(int64(len(ledger))); !ok {
		return nil
	}
	ledger = bytes.Clone(ledger)
	s := k.sealer([headerBytes]byte(ledger), ledgerName)
	var content []byte
	for number, rest := int64(0), ledger[headerBytes:]; len(rest) > 0; number++ {
		n := min(len(rest), sealedChunk)
		plain, err := s.open(number, n == len(rest), rest[:n])
		if err != nil {
			return nil
		}
		content, rest = append(content, plain...), rest[n:]
	}
	return content
}
