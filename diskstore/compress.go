package diskstore

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/trial"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// Compression says which pages a store compresses, without loss.
type Compression int

const (
	// CompressNever stores rows as they are.
	CompressNever Compression = iota

	// CompressAlways stores each section in the encoding that makes it smallest.
	CompressAlways

	// CompressAuto does as CompressAlways where compressed pages come back from the local tier's
	// disk at least as quickly as raw ones. A trial with the first full page decides.
	CompressAuto
)

// String is the value of OLLAMA_KV_TIER_COMPRESS.
func (c Compression) String() string {
	switch c {
	case CompressNever:
		return "0"
	case CompressAlways:
		return "1"
	case CompressAuto:
		return "auto"
	}
	return fmt.Sprintf("Compression(%d)", int(c))
}

// ParseCompression reads a value of OLLAMA_KV_TIER_COMPRESS: "auto", or whether pages are compressed.
// An empty value is CompressNever.
func ParseCompression(value string) (Compression, error) {
	if value == "auto" {
		return CompressAuto, nil
	}
	if value == "" {
		return CompressNever, nil
	}
	on, err := strconv.ParseBool(value)
	switch {
	case err != nil:
		return CompressNever, fmt.Errorf("compression %q is unknown, take 0, 1 or auto: %w", value, ErrOptions)
	case on:
		return CompressAlways, nil
	}
	return CompressNever, nil
}

// trialTime bounds a trial. A disk that needs longer for its files is not measured.
const trialTime = time.Minute

// compressing is the verdict of CompressAuto.
type compressing struct {
	begun atomic.Bool // a trial was submitted
	pays  atomic.Bool
}

// encoder is the codec of new pages, nil for raw ones.
func (s *Store) encoder() *pagefile.Codec {
	if s.opt.Compress == CompressAlways || s.opt.Compress == CompressAuto && s.compressing.pays.Load() {
		return s.codec
	}
	return nil
}

// tryCompressing begins the trial of CompressAuto with a full page, once in the life of a store. The
// page belongs to the caller.
func (s *Store) tryCompressing(p *pagefile.Page) {
	if s.opt.Compress != CompressAuto || len(p.Tokens) < s.opt.PageTokens || s.compressing.begun.Swap(true) {
		return
	}
	own, err := trial.Page(p)
	if err != nil {
		s.log.Warn("new kv pages stay uncompressed, the disk could not be measured", "error", err)
		return
	}
	s.trying.Submit(trialKey{}, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, trialTime)
		defer cancel()
		s.decide(ctx, own)
	})
}

type trialKey struct{}

// decide sets whether new pages are compressed.
func (s *Store) decide(ctx context.Context, p *pagefile.Page) {
	content, err := s.disk.Trials(ctx, nil)
	if err != nil {
		s.log.Debug("no record of trials", "error", err)
	}
	r, known := trial.Read(content).Find(s.opt.Fingerprint, runtime.GOMAXPROCS(0), s.now())
	if !known {
		if r, err = s.measure(ctx, p); err != nil {
			if ctx.Err() != context.Canceled { // the store closes
				s.log.Warn("new kv pages stay uncompressed, the disk could not be measured", "error", err)
			}
			return
		}
	}
	s.compressing.pays.Store(r.Pays())
	log := s.log.With("raw_gb_per_s", rounded(r.Raw), "compressed_gb_per_s", rounded(r.Compressed), "ratio", rounded(r.Ratio), "measured", r.When.Format(time.DateOnly))
	if r.Pays() {
		log.Info("new kv pages are compressed: this disk returns them at least as soon")
	} else {
		log.Info("new kv pages stay uncompressed: this disk returns them sooner")
	}
}

// rounded has two decimals.
func rounded(x float64) string { return fmt.Sprintf("%.2f", x) }

// measure runs a trial in reserved room and records its result.
func (s *Store) measure(ctx context.Context, p *pagefile.Page) (trial.Result, error) {
	room, _, err := s.makeRoom(ctx, trial.Bytes(p), position{parent: p.Parent, start: p.Start})
	if err != nil {
		return trial.Result{}, err
	}
	defer room.Cancel()
	disk := &trialDisk{disk: s.disk}
	defer func() { room.Wasted(disk.written) }()
	r, err := trial.Run(ctx, disk, p, trial.Options{
		Fingerprint: s.opt.Fingerprint, PageTokens: s.opt.PageTokens, Codec: s.codec, Quiet: s.traffic.StandBack, Now: s.now,
	})
	if err != nil {
		return r, err
	}
	_, err = s.disk.Trials(ctx, func(content []byte) []byte {
		changed, err := trial.Read(content).With(s.opt.Fingerprint, r)
		if err != nil {
			return content
		}
		return changed
	})
	if err != nil {
		s.log.Debug("the result of a trial is not recorded", "error", err)
	}
	return r, nil
}

// trialDisk makes the files of a trial in the local tier.
type trialDisk struct {
	disk    *dir.Tier
	written int64
}

func (d *trialDisk) Write(ctx context.Context, e *pagefile.Encoded) (trial.File, error) {
	d.written += e.Header.FileBytes
	f, err := d.disk.Scratch(ctx, e)
	if err != nil {
		return nil, err
	}
	return f, nil
}
