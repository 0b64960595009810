#!/usr/bin/env perl
# Solve a word problem with a calculator, in Perl with the modules that come with it. The problem stands in the
# environment (QUESTION), and the right answer is the argument. The exit status is 0 if both agree.
use strict;
use warnings;
use HTTP::Tiny;
use JSON::PP;

my $form = "When you have the answer, give it between three sharps: ### ANSWER: <answer> ###";
my $calculate = {
    type     => "function",
    function => {
        name        => "calculate",
        description => "Calculate the value of an arithmetic expression.",
        parameters  => {
            type       => "object",
            properties => { expression => { type => "string" } },
            required   => ["expression"],
        },
    },
};

# sum = product (("+" | "-") product)*; product = factor (("*" | "/") factor)*; factor = number | "(" sum ")"
sub factor {
    my ($text) = @_;
    return $1 if $$text =~ s/^\s*(\d+)//;
    $$text =~ s/^\s*\(// or die "a number is missing\n";
    my $value = sum($text);
    $$text =~ s/^\s*\)// or die "a bracket is missing\n";
    return $value;
}

sub product {
    my ($text) = @_;
    my $value = factor($text);
    while ($$text =~ s{^\s*([*/])}{}) {
        my ($sign, $next) = ($1, factor($text));
        die "division by zero\n" if $sign eq "/" && !$next;
        $value = $sign eq "*" ? $value * $next : $value / $next;
    }
    return $value;
}

sub sum {
    my ($text) = @_;
    my $value = product($text);
    while ($$text =~ s/^\s*([+-])//) {
        my ($sign, $next) = ($1, product($text));
        $value = $sign eq "+" ? $value + $next : $value - $next;
    }
    return $value;
}

sub calculate {
    my ($expression) = @_;
    my $value = eval { my $found = sum(\$expression); die "it goes on\n" if $expression =~ /\S/; $found };
    return defined $value ? sprintf("%g", $value) : "error: $@";
}

sub ask {
    my ($messages) = @_;
    my $answer = HTTP::Tiny->new->post(
        "$ENV{OPENAI_BASE_URL}/chat/completions",
        {
            headers => {
                "Content-Type"  => "application/json",
                "Authorization" => "Bearer $ENV{OPENAI_API_KEY}",
            },
            content => encode_json({
                model => $ENV{OPENAI_MODEL} // "gpt-4o", messages => $messages, tools => [$calculate],
            }),
        },
    );
    if (!$answer->{success}) { print STDERR "HTTP $answer->{status}: $answer->{content}\n"; exit 126 }
    return decode_json($answer->{content})->{choices}[0]{message};
}

my @messages = (
    { role => "system", content => "Use the calculator." },
    { role => "user", content => "$ENV{QUESTION}\n\n$form" },
);
my $said = "";
for (1 .. 4) {
    my $message = ask(\@messages);
    if (!@{ $message->{tool_calls} // [] }) { $said = $message->{content} // ""; last }
    push @messages, { map { $_ => $message->{$_} } qw(role content tool_calls) };
    for my $call (@{ $message->{tool_calls} }) {
        my $given = eval { decode_json($call->{function}{arguments}) };
        my $expression = ref $given eq "HASH" ? $given->{expression} // "" : "";
        push @messages, { role => "tool", tool_call_id => $call->{id}, content => calculate($expression) };
    }
}
my ($found) = $said =~ /.*### ANSWER: (\S+) ###/s;
exit(defined $found && $found eq $ARGV[0] ? 0 : 1);
