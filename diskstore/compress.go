package diskstore

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/trial"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Compression says which pages a store compresses, without loss.
type Compression int

const (
	// CompressNever stores rows as they are.
	CompressNever Compression = iota

	// CompressAlways stores each section in the encoding that makes it smallest.
	CompressAlways

	// CompressAuto does as CompressAlways where compressed pages come back from the local tier sooner
	// than raw ones. Until that is known, new pages take turns between both forms.
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

// encoder is the codec of a new page, nil for a raw one.
func (s *Store) encoder(key pagefile.Key) *pagefile.Codec {
	if s.opt.Compress == CompressAlways || s.trial != nil && s.trial.Compress(key) {
		return s.codec
	}
	return nil
}

// encode computes the file of a new page.
func (s *Store) encode(p *pagefile.Page, key pagefile.Key) (*pagefile.Encoded, error) {
	c := s.encoder(key)
	e, err := pagefile.Encode(s.opt.Fingerprint, s.opt.PageTokens, p, c)
	if err == nil && c != nil && s.trial != nil && !e.Header.Tail() {
		s.tellTrial(s.trial.Encoded(!e.Header.Raw()))
	}
	return e, err
}

// tried notes the time in which a whole page came back from the local tier, with all checks, and with the use of
// its rows.
func (s *Store) tried(lv *level, h *pagefile.Header, layout pagefile.Layout, took time.Duration) {
	if s.trial == nil || lv != s.local || h.Tail() || h.Lossy() || !layout.Equal(h.Layout) {
		return
	}
	form := trial.Compressed
	if h.Raw() {
		form = trial.Raw
	}
	s.tellTrial(s.trial.Read(trial.Page{Key: h.Key, Parent: h.Parent}, form, layout.Size(), took))
}

// tellTrial logs a verdict that has changed.
func (s *Store) tellTrial(v trial.Verdict, changed bool) {
	if !changed {
		return
	}
	log := s.log.With("raw_gb_per_s", perSecond(v.Seconds[trial.Raw]), "compressed_gb_per_s", perSecond(v.Seconds[trial.Compressed]))
	if v.Form == trial.Compressed {
		log.Info("new kv pages are compressed: this disk returns them sooner")
	} else {
		log.Info("new kv pages stay uncompressed: compression does not return them sooner")
	}
}

// perSecond is a speed with two decimals, and "-" where it is not known.
func perSecond(seconds float64) string {
	if seconds <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", 1/seconds)
}

// recallTrial takes over the verdict of an earlier process.
func (s *Store) recallTrial(ctx context.Context) {
	if s.opt.Compress != CompressAuto {
		return
	}
	s.trial = trial.New()
	content, err := s.disk.Trials(ctx, nil)
	if err != nil {
		s.log.Debug("no record of trials", "error", err)
		return
	}
	s.trial.Recall(content, s.opt.Fingerprint, runtime.NumCPU(), s.now())
}

// recordTrial keeps the verdict for the next process.
func (s *Store) recordTrial(ctx context.Context) {
	if s.trial == nil || !s.trial.Changed() {
		return
	}
	version := 0
	_, err := s.disk.Trials(ctx, func(content []byte) (record []byte) {
		record, version = s.trial.Record(content, s.opt.Fingerprint, runtime.NumCPU(), s.now())
		return record
	})
	if err != nil {
		s.log.Debug("the verdict of a trial is not recorded", "error", err)
		return
	}
	s.trial.Recorded(version)
}
