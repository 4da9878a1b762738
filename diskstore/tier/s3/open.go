package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
)

// Scheme is that of an address.
const Scheme = "s3"

// attempts is the number of times a request is made: package guard keeps off a store that goes on failing.
const attempts = 2

// Place is where a tier is: s3://bucket/prefix?endpoint=https://host&region=name&renew=days.
type Place struct {
	Bucket, Prefix   string
	Endpoint, Region string // "" are those of the environment
	Renew            time.Duration

	// Variables are those of another process, whose credentials and region count; nil for this one. The files that
	// they name are not read: they may be another user's, and name a program to run.
	Variables map[string]string
}

// ParseAddress parses an address. Credentials are not part of it.
func ParseAddress(address string) (p Place, err error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return p, errors.New("the address is no URL") // the error would show it
	case u.Scheme != Scheme || u.Host == "":
		return p, errors.New("an address is s3://bucket/prefix?endpoint=https://host")
	case u.User != nil || u.Port() != "":
		return p, errors.New("an address names a bucket: leave user, password and port out, the endpoint has the host, and AWS_ACCESS_KEY_ID or a profile the credentials")
	}
	p.Bucket, p.Prefix = u.Host, strings.Trim(u.Path, "/")
	if p.Prefix != "" {
		p.Prefix += "/"
	}
	var days string
	for name, values := range u.Query() {
		switch to := map[string]*string{"endpoint": &p.Endpoint, "region": &p.Region, "renew": &days}[name]; {
		case to == nil || len(values) != 1:
			return p, fmt.Errorf("an address has one endpoint, one region and one renew at most, and no %q", name)
		default:
			*to = values[0]
		}
	}
	if n, err := strconv.Atoi(days); days != "" && (err != nil || n < 1 || n > 10_000) {
		return p, fmt.Errorf("renew is a number of days, and not %q", days)
	} else {
		p.Renew = time.Duration(n) * 24 * time.Hour
	}
	if e, err := url.Parse(p.Endpoint); p.Endpoint != "" && (err != nil || e.Host == "" || e.User != nil || e.Scheme != "http" && e.Scheme != "https") {
		return p, errors.New("an endpoint is https://host or https://host:port")
	}
	return p, nil
}

// Encrypted reports whether requests are.
func (p Place) Encrypted() bool { return !strings.HasPrefix(p.Endpoint, "http://") }

// Open returns the tier at a place, with the credentials that AWS's own tools would use. Open reads files
// and variables, and makes no request.
func (p Place) Open(ctx context.Context) (*Tier, error) {
	settings := []func(*config.LoadOptions) error{
		config.WithRetryMaxAttempts(attempts),
		config.WithLogger(logging.Nop{}), // errors say it, and are logged once for each outage
		// Pages have checksums of their own, and not every store knows AWS's newer ones.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if p.Variables != nil {
		settings = append(settings, others(p.Variables)...)
	}
	if p.Region != "" {
		settings = append(settings, config.WithRegion(p.Region))
	}
	cfg, err := config.LoadDefaultConfig(ctx, settings...)
	if err != nil {
		return nil, fmt.Errorf("read the settings of AWS: %w", err)
	}
	if cfg.Region == "" {
		cfg.Region = "us-east-1" // other stores take any
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.HTTPClient = newClient(cfg.HTTPClient)
		if p.Endpoint != "" {
			o.BaseEndpoint, o.UsePathStyle = &p.Endpoint, true
		}
	})
	t := New(client, p.Bucket, p.Prefix)
	t.Renew = p.Renew
	return t, nil
}

// others are the settings in another process's variables. Without credentials there, those of the machine count.
func others(set map[string]string) []func(*config.LoadOptions) error {
	settings := []func(*config.LoadOptions) error{
		config.WithSharedConfigFiles([]string{}), config.WithSharedCredentialsFiles([]string{}),
		config.WithRegion(cmp.Or(set["AWS_REGION"], set["AWS_DEFAULT_REGION"])),
	}
	if id := set["AWS_ACCESS_KEY_ID"]; id != "" {
		own := credentials.NewStaticCredentialsProvider(id, set["AWS_SECRET_ACCESS_KEY"], set["AWS_SESSION_TOKEN"])
		settings = append(settings, config.WithCredentialsProvider(own))
	}
	return settings
}
